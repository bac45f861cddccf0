"""Commits through the client, against the real service: fenced, repeatable, and in nobody's way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from include.cvmfs import errors as cvmfs
from include.gateway import errors
from include.gateway.client.client import GatewayClient
from include.gateway.service.commits.queue import Point
from include.gateway.service.leases.lease_table import LeaseGone
from include.storage.errors import Unavailable
from tests.fakes.gateway_service import FakeCommitter, ManualClock
from tests.fakes.refused import refused
from tests.integration.gateway.conftest import LEASE_S, NEW, NEWER, OLD, REPOSITORY


class Tag:
    name = "v1"
    description = "<first> & last"


@pytest.fixture
def committer() -> FakeCommitter:
    return FakeCommitter()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gateway(start_gateway: object, committer: FakeCommitter, clock: ManualClock) -> object:
    return start_gateway(committer=committer, clock=clock)  # type: ignore[operator]


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_a_commit_spends_the_lease_and_tells_the_revision(client: GatewayClient, committer: FakeCommitter) -> None:
    lease = client.acquire(REPOSITORY, "/a/b", hostname="h")
    assert client.commit(lease, OLD, NEW, tag=Tag()) == 1  # type: ignore[arg-type]
    assert client.leases() == []
    [order] = committer.orders
    assert (order.repository, order.lease_path, order.tag_name, order.tag_description) == (
        REPOSITORY, "/a/b", "v1", "<first> & last",
    )  # fmt: skip
    assert (order.old_root.text, order.new_root.text) == ("1" * 40 + "C", "2" * 40 + "C")


def test_a_repeated_commit_has_one_revision_and_is_made_once(client: GatewayClient, committer: FakeCommitter) -> None:
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    assert [client.commit(lease, OLD, NEW) for _ in range(3)] == [1, 1, 1]
    assert len(committer.orders) == 1
    with refused(errors.LeaseLost, path="/a", reason="invalid lease"):
        client.commit(lease, OLD, NEWER)


def test_the_same_commit_sent_twice_at_once_is_made_once(
    client: GatewayClient, committer: FakeCommitter, background: ThreadPoolExecutor
) -> None:
    committer.gate = threading.Event()
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    both = [background.submit(client.commit, lease, OLD, NEW) for _ in range(2)]
    assert committer.started.wait(60)
    committer.gate.set()
    assert [commit.result(20) for commit in both] == [1, 1]
    assert len(committer.orders) == 1


class Line:
    """Holds the first commit up until the others stand in line behind it."""

    def __init__(self, start_gateway: Callable[..., object], committer: FakeCommitter, clock: ManualClock) -> None:
        self.queued = threading.Semaphore(0)
        committer.gate = threading.Event()
        self.committer = committer
        self.gateway = start_gateway(committer=committer, clock=clock, on_point=self._passed)
        self.client: GatewayClient = self.gateway.client()  # type: ignore[attr-defined]

    def _passed(self, point: Point) -> None:
        if point is Point.QUEUED:
            self.queued.release()

    def wait_for(self, many: int) -> None:
        for _ in range(many):
            assert self.queued.acquire(timeout=20)


@pytest.fixture
def line(start_gateway: Callable[..., object], committer: FakeCommitter, clock: ManualClock) -> Line:
    return Line(start_gateway, committer, clock)


def test_commits_that_wait_for_one_repository_become_one_revision(line: Line, background: ThreadPoolExecutor) -> None:
    first, *others = [line.client.acquire(REPOSITORY, f"/{number}", hostname="h") for number in range(6)]
    revisions = [background.submit(line.client.commit, first, OLD, NEW)]
    assert line.committer.started.wait(20), "the first commit has begun alone"
    revisions += [background.submit(line.client.commit, lease, OLD, NEW) for lease in others]
    line.wait_for(6)
    assert line.committer.gate
    line.committer.gate.set()
    assert [future.result(20) for future in revisions] == [1, 2, 2, 2, 2, 2]
    assert line.committer.groups == [1, 5]
    assert line.client.leases() == []


def test_whoever_of_a_group_lost_the_lease_is_refused_alone(
    line: Line, clock: ManualClock, background: ThreadPoolExecutor
) -> None:
    client, committer = line.client, line.committer
    first = background.submit(client.commit, client.acquire(REPOSITORY, "/first", hostname="h"), OLD, NEW)
    line.wait_for(1)
    assert committer.started.wait(20), "the first commit has begun alone"
    expiring = client.acquire(REPOSITORY, "/expiring", hostname="h")
    clock.advance(60)
    lasting, dropped = (client.acquire(REPOSITORY, path, hostname="h") for path in ("/lasting", "/dropped"))
    commits = [background.submit(client.commit, lease, OLD, NEW) for lease in (expiring, lasting, dropped)]
    line.wait_for(3)
    held, committer.gate = committer.gate, threading.Event()
    committer.started.clear()
    assert held
    held.set()
    assert committer.started.wait(20), "the group of three has begun"
    clock.advance(50)
    client.drop(dropped)
    committer.gate.set()
    assert first.result(20) == 1
    assert commits[1].result(20) == 2
    for commit, path in ((commits[0], "/expiring"), (commits[2], "/dropped")):
        with refused(errors.LeaseLost, path=path):
            commit.result(20)
    assert committer.groups == [1, 3]


def test_an_expired_lease_is_refused_before_the_commit_begins(
    client: GatewayClient, committer: FakeCommitter, clock: ManualClock
) -> None:
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    clock.advance(LEASE_S)
    with pytest.raises(errors.LeaseLost):
        client.commit(lease, OLD, NEW)
    assert committer.orders == []


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (cvmfs.MergeError("/a", "both changed it"), errors.MERGE_FAILED),
        (cvmfs.ManifestConflict(REPOSITORY), errors.MANIFEST_MOVED),
        (cvmfs.BaseChanged("/a", "swept"), errors.BaseMoved),
        (LeaseGone("its lease ended"), errors.LeaseLost),
        (cvmfs.ReflogError(REPOSITORY, "missing"), errors.REFLOG_MISSING),
        (cvmfs.ObjectMissing("data/11/11C"), errors.ROOT_MISSING),
        (cvmfs.TagError("v1", "exists"), errors.TagRefused),
        (cvmfs.GenerationMoved(REPOSITORY, "judged at 1:idle"), errors.CollectionMoved),
        (Unavailable("store: 503", key=".cvmfspublished", cause="503"), errors.STORAGE_FAILED),
        (ZeroDivisionError("a bug"), errors.CommitFailed),
    ],
    ids=lambda value: getattr(value, "code", type(value).__name__),
)
def test_a_failed_commit_is_a_typed_error_and_can_be_tried_again_under_the_lease(
    client: GatewayClient, committer: FakeCommitter, failure: Exception, kind: errors.GatewayErrorKind
) -> None:
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    committer.fail_next = failure
    with refused(kind, repository=REPOSITORY, path="/a") as caught:
        client.commit(lease, OLD, NEW)
    if isinstance(failure, ZeroDivisionError):
        assert "a bug" not in str(caught.value)
        assert caught.value.trace
    else:
        assert f"{failure}; {kind.hint}" in str(caught.value)
    if isinstance(failure, cvmfs.GenerationMoved):
        assert "again" not in str(failure), "the hint says what to do, and once"
    assert len(client.leases()) == 1
    assert client.commit(lease, OLD, NEW) == 1


def test_the_log_says_of_a_group_whether_a_revision_was_made(
    client: GatewayClient, committer: FakeCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    committer.fail_next = cvmfs.MergeError("/a", "both changed it")
    with refused(errors.MERGE_FAILED):
        client.commit(lease, OLD, NEW)
    client.commit(lease, OLD, NEW)
    groups = [record for record in caplog.records if record.getMessage().startswith("group ")]
    told = [(record.getMessage(), record.__dict__["fields"]) for record in groups]
    assert [(message, fields.get("revision"), fields["refused"]) for message, fields in told] == [
        ("group refused", None, 1), ("group committed", 1, 0),
    ]  # fmt: skip
    assert "revision" not in told[0][1]


def test_only_the_key_of_the_lease_or_an_admin_may_commit(gateway: object, client: GatewayClient) -> None:
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    for key_id in ("stranger", "subkey", "plainkey"):
        with pytest.raises(errors.LeaseLost):
            gateway.client(key_id).commit(lease, OLD, NEW)  # type: ignore[attr-defined]
    assert gateway.client("adminkey").commit(lease, OLD, NEW) == 1  # type: ignore[attr-defined]
