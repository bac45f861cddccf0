"""What goes wrong on a node, and that nothing is lost, published twice, or taken from somebody else."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from include.errors import ErrorRow
from include.gateway.errors import PathBusy
from include.publishers import errors
from include.publishers.server.publisher import ServerPublisher
from tests.fakes.node import TOKEN_ON_THE_NODE, PublisherNode, packed
from tests.fakes.refused import refused
from tests.fakes.together import together
from tests.site import DESTINATIONS, FQRN, now

pytestmark = pytest.mark.server("sshd")
FILES = {"bin/tool": b"#!/bin/sh\n", "lib/common.so": os.urandom(300_000)}
ALPHA, BETA, _ = DESTINATIONS
EACH_INSTALL = pytest.mark.parametrize("install", ["transaction", pytest.param("ingest", marks=pytest.mark.thorough)])


def reserved(node: PublisherNode, **server: object) -> ServerPublisher:
    """A publisher, with the destinations reserved."""
    publisher = node.publisher(server)
    publisher.reserve([ALPHA, BETA], nested=[], holder="night", now=now())
    return publisher


def publish(node: PublisherNode, publisher: ServerPublisher, **more: object) -> object:
    site = node.site()
    return publisher.publish(packed(site, ALPHA, FILES), holder="night", now=now(), **more)  # type: ignore[arg-type]


def assert_done_once(node: PublisherNode) -> None:
    assert node.revisions == 2  # the reserve and the tree
    assert node.contents(ALPHA) == FILES
    node.assert_sound()


def assert_untouched(node: PublisherNode) -> None:
    assert node.revisions == 1
    assert node.contents(ALPHA) == {}
    node.assert_sound()


# -- what the node refuses


def test_a_busy_path_tells_how_long_and_is_waited_for_within_the_time_given(node: PublisherNode) -> None:
    publisher = reserved(node)
    lease = node.lease(ALPHA, "1m30.5s")
    with pytest.raises(PathBusy) as busy:
        publish(node, publisher)
    assert busy.value.time_remaining_s == 90.5
    assert (busy.value.repository, busy.value.path) == (FQRN, ALPHA)
    assert_untouched(node)
    threading.Timer(0.2, lease.unlink).start()
    publish(node, node.publisher({"busy_wait_s": 30}))
    assert node.calls("transaction")[-1][1:3] == ["-t", "30"]
    assert_done_once(node)


@EACH_INSTALL
def test_a_transaction_of_somebody_else_is_waited_for_and_never_aborted(node: PublisherNode, install: str) -> None:
    publisher = reserved(node, install=install)
    assert node.somebody("transaction", FQRN + BETA).returncode == 0
    with pytest.raises(errors.TransactionOpen) as busy:
        publish(node, publisher)
    assert isinstance(busy.value, PathBusy)
    assert busy.value.retryable
    assert node.in_transaction
    assert node.calls("abort") == []
    (node.root / "mount" / BETA[1:] / "theirs").write_bytes(b"work")
    assert node.somebody("publish", FQRN).returncode == 0
    publish(node, publisher)
    assert node.contents(BETA) == {"theirs": b"work"}
    assert node.contents(ALPHA) == FILES
    node.assert_sound()


def test_a_transaction_of_somebody_who_took_the_place_of_ours_is_never_aborted(node: PublisherNode) -> None:
    publisher = reserved(node)
    node.fault("abort", "gateway")
    node.fault("publish", "fail")
    with refused(errors.SYNC_FAILED):
        publish(node, publisher)
    assert node.in_transaction  # ours, which could not be aborted
    assert node.somebody("abort", "-f", FQRN).returncode == 0
    assert node.somebody("transaction", FQRN + BETA).returncode == 0
    with pytest.raises(errors.TransactionOpen):
        publish(node, publisher)
    assert node.in_transaction
    assert len(node.calls("abort")) == 2  # ours that failed, and theirs


@pytest.mark.parametrize(
    ("verb", "what", "kind", "retryable"),
    [
        ("publish", "fail", errors.SYNC_FAILED, True),
        ("ingest", "fail", errors.SYNC_FAILED, True),
        pytest.param("publish", "expired", errors.LEASE_LOST, True, marks=pytest.mark.thorough),
        pytest.param("publish", "descriptors", errors.FILES_OPEN, True, marks=pytest.mark.thorough),
        pytest.param("publish", "another", errors.ANOTHER_PUBLISH, True, marks=pytest.mark.thorough),
        pytest.param("publish", "full", errors.NODE_FULL, True, marks=pytest.mark.thorough),
        ("tar", "full", errors.NODE_FULL, True),
        ("transaction", "whitelist", errors.WHITELIST_EXPIRED, False),
        pytest.param("transaction", "construction", errors.OPEN_FAILED, True, marks=pytest.mark.thorough),
        pytest.param("transaction", "key", errors.KEY_REFUSED, False, marks=pytest.mark.thorough),
    ],
)
def test_what_fails_on_the_node_has_its_error_is_aborted_and_can_be_tried_again(
    node: PublisherNode, verb: str, what: str, kind: ErrorRow[..., errors.NodeError], retryable: bool
) -> None:
    publisher = reserved(node, install="ingest" if verb == "ingest" else "transaction")
    node.fault(verb, what)
    with refused(kind, retryable=retryable, fqrn=FQRN) as failed:
        publish(node, publisher)
    assert kind.hint in str(failed.value)
    assert_untouched(node)
    publish(node, publisher)
    assert_done_once(node)


def test_with_the_gateway_down_our_transaction_stays_open_and_the_next_try_aborts_it(
    node: PublisherNode, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = reserved(node)
    node.fault("publish", "fail")
    node.fault("abort", "always gateway")
    with refused(errors.SYNC_FAILED):
        publish(node, publisher)
    assert node.in_transaction
    assert "our transaction stays open for now" in caplog.text
    with refused(errors.LEASE_NOT_DROPPED) as undropped:
        publish(node, publisher)
    assert undropped.value.retryable
    (node.root / "faults" / "abort").unlink()
    publish(node, publisher)
    assert "that night began" in caplog.text
    assert_done_once(node)


def test_a_command_that_hangs_is_ended_on_the_node(node: PublisherNode) -> None:
    publisher = reserved(node)
    slow = node.publisher({"time_limit_s": 2})
    node.fault("publish", "hang")
    with refused(errors.COMMAND_HUNG):
        publish(node, slow)
    assert_untouched(node)
    publish(node, publisher)
    assert_done_once(node)


def test_output_of_any_kind_is_logged_without_tokens(node: PublisherNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    publisher = reserved(node)
    node.fault("transaction", "noise")
    publish(node, publisher)
    assert r"caf\\xe9 \\xff\\xfe\x1b[31mred" in caplog.text
    assert "session <token> taken" in caplog.text
    assert TOKEN_ON_THE_NODE not in caplog.text
    assert max(len(line) for line in caplog.text.splitlines()) < 5000
    assert_done_once(node)


def test_a_place_that_leads_out_of_the_repository_is_refused_and_nothing_is_removed(node: PublisherNode) -> None:
    publisher = reserved(node)
    precious = node.folder / "precious" / "x86_64"
    precious.mkdir(parents=True)
    (precious / "file").write_bytes(b"precious")
    above = node.root / "mount" / ALPHA[1:].rpartition("/")[0]
    for one in sorted(above.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    above.rmdir()
    above.symlink_to(precious.parent)
    with refused(errors.PLACE_REFUSED, path=ALPHA):
        publish(node, publisher)
    assert (precious / "file").read_bytes() == b"precious"
    assert_untouched(node)


# -- connections that end


@pytest.mark.parametrize(
    ("install", "verb", "what"),
    [
        pytest.param("transaction", "transaction", "cut", marks=pytest.mark.thorough),
        ("transaction", "tar", "cut"),
        pytest.param("transaction", "publish", "cut-before", marks=pytest.mark.thorough),
        ("transaction", "publish", "cut-committed"),
        ("transaction", "publish", "commit-then-fail"),
        pytest.param("transaction", "publish", "cut", marks=pytest.mark.thorough),
        ("ingest", "ingest", "cut"),
    ],
)
def test_after_a_lost_connection_or_reply_it_is_looked_at_and_nothing_is_done_twice(
    node: PublisherNode, install: str, verb: str, what: str
) -> None:
    publisher = reserved(node, install=install)
    node.fault(verb, what)
    done = publish(node, publisher)
    assert not done.unchanged  # type: ignore[attr-defined]
    assert done.revision == done.revision_before + 1  # type: ignore[attr-defined]
    assert_done_once(node)


def test_a_publication_that_still_runs_after_the_connection_was_lost_is_waited_for(node: PublisherNode) -> None:
    publisher = reserved(node, busy_wait_s=30)
    node.fault("publish", "cut-slow")
    threading.Timer(0.4, (node.root / "go-on").touch).start()
    publish(node, publisher)
    assert len(node.calls("publish")) == 2  # the reserve's and this one
    assert_done_once(node)


def test_an_ingest_that_ends_with_the_connection_leaves_a_transaction_of_unknown_owner(node: PublisherNode) -> None:
    publisher = reserved(node, install="ingest")
    node.fault("ingest", "cut-before")
    with pytest.raises(errors.TransactionOpen):
        publish(node, publisher)
    assert node.calls("abort") == []
    assert node.somebody("abort", "-f", FQRN).returncode == 0
    publish(node, publisher)
    assert_done_once(node)


def test_a_reserve_and_a_removal_survive_lost_connections(node: PublisherNode) -> None:
    publisher = node.publisher()
    node.fault("publish", "cut")
    publisher.reserve([ALPHA, BETA], nested=[], holder="night", now=now())
    assert node.revisions == 1
    publish(node, publisher)
    node.fault("ingest", "cut")
    publisher.remove(ALPHA, holder="night", now=now())
    assert node.revisions == 3
    assert node.head().revision.lookup(ALPHA) is None
    node.assert_sound()


@pytest.mark.parametrize("node", ["none"], indirect=True)
def test_a_tag_is_given_once_although_the_connection_was_lost(node: PublisherNode) -> None:
    publisher = reserved(node)
    node.fault("tag", "cut")
    given = publisher.add_tag("golden", description="the good one")
    assert (given.name, given.description) == ("golden", "the good one")
    assert [call[1] for call in node.calls("tag")].count("-a") == 1
    assert publisher.add_tag("golden").hash == given.hash
    publish(node, publisher)
    with refused(errors.NAME_REFUSED):
        publisher.add_tag("golden")
    assert publisher.remove_tags(["golden", "absent"]) == ("golden",)
    assert publisher.tags() == []
    (node.root / "tags").write_text("".join(f"t{number} {number:040x} 1 1 1 (default) \n" for number in range(3000)))
    assert [one.name for one in publisher.tags()] == [f"t{number}" for number in range(3000)]


# -- several of ours, and those that are killed


def test_two_of_our_tasks_on_one_node_take_turns(node: PublisherNode) -> None:
    publisher = reserved(node, busy_wait_s=60)
    site = node.site()
    jobs = {path: packed(site, path, {"file": path.encode()}) for path in (ALPHA, BETA)}
    together(partial(publisher.publish, job, holder=path, now=now()) for path, job in jobs.items())
    assert {path: node.contents(path) for path in jobs} == {path: {"file": path.encode()} for path in jobs}
    assert node.revisions == 3
    assert node.calls("abort") == []
    node.assert_sound()


class Interrupted(BaseException):
    """As an operator's signal handler raises it, on top of whatever runs."""


def test_a_task_that_is_killed_aborts_what_it_began(node: PublisherNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.publishers.server.node._GIVE_UP_WAIT_S", 60)  # for a busy machine
    publisher = reserved(node)
    site = node.site()
    changeset = packed(site, ALPHA, FILES)
    given_up: list[object] = []

    def killed_while_sending(give_up: object) -> None:
        given_up.append(give_up)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    node.fault("tar", "wait")
    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(
        target=lambda: (_until(lambda: _unpacking(node)), os.kill(os.getpid(), signal.SIGUSR1)), daemon=True
    )
    watcher.start()
    try:
        with pytest.raises(Interrupted):
            publisher.publish(changeset, holder="night", now=now(), on_lease=killed_while_sending)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not node.in_transaction
    given_up[0]()  # type: ignore[operator]
    assert_untouched(node)
    publisher.publish(changeset, holder="night", now=now())
    assert_done_once(node)


def test_who_gives_up_from_outside_leaves_what_others_began(node: PublisherNode) -> None:
    publisher = reserved(node)
    given_up: list[object] = []
    publish(node, publisher, on_lease=given_up.append)
    assert node.somebody("transaction", FQRN + BETA).returncode == 0
    given_up[0]()  # type: ignore[operator]
    assert node.in_transaction
    assert node.calls("abort") == []


_KILLED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from include.cvmfs.ingest.changeset import Changeset
from include.site.site import Site
from include.settings.load import load
from include.settings.secrets import EnvSecrets

site = Site(load(Path(sys.argv[1]), environ={}), EnvSecrets({}))
changeset = Changeset.parse(Path(sys.argv[2]).read_text())
site.publisher(changeset.repository).publish(changeset, holder="killed", now=datetime.now(UTC))
"""


@pytest.mark.parametrize(
    ("verb", "what"),
    [("tar", "wait"), *(pytest.param("publish", what, marks=pytest.mark.thorough) for what in ("cut-slow", "hang"))],
)
def test_after_kill_9_of_a_publisher_the_next_one_goes_on(node: PublisherNode, verb: str, what: str) -> None:
    publisher = reserved(node, busy_wait_s=60)
    site = node.site({"time_limit_s": 3})
    changeset = packed(site, ALPHA, FILES)
    file = node.folder / "changeset.json"
    file.write_bytes(changeset.format())
    node.fault(verb, what)
    command = [sys.executable, "-c", _KILLED, str(node.folder / "site.yaml"), str(file)]
    process = subprocess.Popen(command, cwd=Path.cwd())
    _until(lambda: _unpacking(node) if verb == "tar" else not (node.root / "faults" / verb).exists())
    process.kill()
    process.wait()
    threading.Timer(0.3, (node.root / "go-on").touch).start()
    publisher.publish(changeset, holder="night", now=now())
    assert_done_once(node)


def _unpacking(node: PublisherNode) -> bool:
    return not (node.root / "faults" / "tar").exists()


def _until(happened: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.02)
