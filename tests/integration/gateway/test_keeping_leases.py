"""Leases over time: renewed where the gateway does that, never relied on beyond their end, each with its lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
import urllib3

from include.gateway import errors
from include.gateway.client import leases
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import LOGGER, Lease
from tests.fakes.gateway_service import FakeCommitter, ManualClock
from tests.fakes.refused import refused
from tests.fakes.stockgateway import StockGateway
from tests.integration.gateway.conftest import LEASE_S, NEW, OLD, REPOSITORY, Counting
from tests.site import RunningGateway


@pytest.fixture
def start_stock() -> Iterator[Callable[..., tuple[StockGateway, GatewayClient]]]:
    running: list[Any] = []

    def start(**settings: Any) -> tuple[StockGateway, GatewayClient]:
        stock = StockGateway(Counting(), {"k": "s3cr3t"}, **settings).__enter__()  # type: ignore[arg-type]
        client = GatewayClient(stock.url, "k", "s3cr3t", timeout_s=10, retries=0)
        running.extend((client, stock))
        return stock, client

    yield start
    for one in running:
        one.__exit__(None, None, None)


class Audit(logging.Handler):
    """What was told to the audit log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []
        self._more = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._more:
            self.lines.append(record)
            self._more.notify_all()

    def wait_for(self, event: str, times: int = 1) -> None:
        """Until an event was recorded so many times more."""
        with self._more:
            wanted = self.events().count(event) + times
            assert self._more.wait_for(lambda: self.events().count(event) >= wanted, 30), self.events()

    def events(self) -> list[str]:
        return [line.event for line in self.lines]  # type: ignore[attr-defined]


@pytest.fixture
def audit() -> Iterator[Audit]:
    handler, logger = Audit(), logging.getLogger(LOGGER)
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases last for minutes, and are renewed all the time."""
    monkeypatch.setattr(leases, "RENEW_AT", 0.0)
    monkeypatch.setattr(leases, "SHORTEST_PAUSE_S", 0.02)
    monkeypatch.setattr(leases, "MOST_RENEWALS", 1_000_000)


class Gate:
    """Stands before the renewals of a client: they are only made while it is ``open``."""

    def __init__(self, client: GatewayClient, *, open: bool = True) -> None:  # noqa: A002 - what it is
        self.open = open
        self._asked, self._more = 0, threading.Condition()
        self._may = client._holdings.may_be_renewed
        client._holdings.may_be_renewed = self  # type: ignore[method-assign, assignment]

    def __call__(self, lease: Lease) -> bool:
        with self._more:
            self._asked += 1
            self._more.notify_all()
        return self.open and self._may(lease)

    def wait_for_questions(self, times: int) -> None:
        """Until it was asked so many times more whether a lease is to be renewed."""
        with self._more:
            wanted = self._asked + times
            assert self._more.wait_for(lambda: self._asked >= wanted, 30)


@pytest.mark.usefixtures("often")
def test_a_lease_that_is_held_is_renewed_in_the_background_and_outlives_its_first_time(
    start_gateway: Callable[..., RunningGateway], audit: Audit
) -> None:
    clock = ManualClock()
    gateway = start_gateway(clock=clock)
    client = gateway.client()
    with client.lease(REPOSITORY, "/a", hostname="h") as lease:
        for _ in range(3):
            clock.advance(0.6 * LEASE_S)
            audit.wait_for("renewed", times=2)  # the first may have been under way before
        assert [one.path for one in client.leases()] == ["/a"]
        assert client.commit(lease, OLD, NEW) == 1
    assert audit.events()[0] == "acquired"
    assert audit.events()[-1] == "committed"
    assert audit.events().count("renewed") >= 2


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.01)


@pytest.mark.usefixtures("often")
def test_that_a_stock_gateway_renews_nothing_is_asked_once_for_all_leases(start_stock: Any, audit: Audit) -> None:
    stock, client = start_stock(max_lease_time_s=LEASE_S)
    with client.lease(REPOSITORY, "/a", hostname="h"):
        until(lambda: client._can_renew is False)
    with client.lease(REPOSITORY, "/b", hostname="h"):
        assert f"lease {REPOSITORY}/b" not in [thread.name for thread in threading.enumerate()], "nothing renews it"
    assert stock.calls.count("PATCH /leases/<token>") == 1
    assert stock.calls.count("GET /leases/<token>") == 1, "what leases last is asked once"
    assert audit.events() == ["acquired", "dropped"] * 2


def test_the_deadline_of_a_stock_lease_is_never_later_than_its_own(start_stock: Any) -> None:
    _, client = start_stock(max_lease_time_s=LEASE_S)
    before = time.monotonic()
    with client.lease(REPOSITORY, "/a", hostname="h") as lease:
        asking_s = time.monotonic() - before
        [listed] = client.leases()
        its_own = time.monotonic() + (listed.expires - datetime.now(UTC)).total_seconds()
        assert lease.expires_monotonic is not None
        # up to a second is lost to a Date without fractions, one more to care, and what the answers took
        assert its_own - 2.1 - asking_s < lease.expires_monotonic <= its_own + 0.01
    with client.lease(REPOSITORY, "/a", hostname="h") as again:
        assert again.expires_monotonic > lease.expires_monotonic


def test_a_commit_that_could_outlast_its_lease_is_not_begun(start_stock: Any) -> None:
    stock, client = start_stock()
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    late = Lease(lease.token, REPOSITORY, "/a", "h", "k", expires_monotonic=time.monotonic() + 3)
    client._holdings.timed(lease, time.monotonic() + 3)
    client._holdings.known(lease).since_renewal -= 100
    with refused(errors.LEASE_ENDING, path="/a"):
        client.commit(late, OLD, NEW)
    assert stock.commits == []
    assert client.drop(lease)


def test_where_renewal_is_offered_a_late_commit_renews_and_goes_on(gateway: RunningGateway, audit: Audit) -> None:
    client = gateway.client()
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    client._holdings.timed(lease, time.monotonic() + 0.2)
    client._holdings.known(lease).since_renewal -= LEASE_S
    assert client.commit(lease, OLD, NEW) == 1
    assert audit.events() == ["acquired", "renewed", "committed"]


@pytest.mark.usefixtures("often")
def test_a_holder_that_hangs_in_its_commit_does_not_keep_others_out_for_ever(
    start_gateway: Callable[..., RunningGateway], audit: Audit
) -> None:
    committer, clock = FakeCommitter(gate=threading.Event()), ManualClock()
    gateway = start_gateway(committer=committer, clock=clock)
    client = gateway.client()
    gate = Gate(client)
    with client.lease(REPOSITORY, "/a", hostname="h") as lease, ThreadPoolExecutor(1) as pool:
        commit = pool.submit(client.commit, lease, OLD, NEW)
        assert committer.started.wait(20)
        gate.wait_for_questions(2)  # what was asked before the commit began has been done
        renewals = audit.events().count("renewed")
        clock.advance(LEASE_S)
        gate.wait_for_questions(3)
        assert audit.events().count("renewed") == renewals, "nothing is renewed while a commit runs"
        other = gateway.client().acquire(REPOSITORY, "/a", hostname="other")
        committer.gate.set()
        with pytest.raises(errors.LeaseLost):
            commit.result(20)
    assert gateway.client().commit(other, OLD, NEW) == 1


@pytest.mark.usefixtures("often")
def test_a_lease_that_was_taken_away_is_known_before_the_commit(
    start_gateway: Callable[..., RunningGateway], audit: Audit
) -> None:
    gateway = start_gateway()
    client = gateway.client()
    gate = Gate(client, open=False)
    with client.lease(REPOSITORY, "/a", hostname="h") as lease:
        gateway.client("adminkey").drop_by_path(REPOSITORY, "/a")
        gate.open = True
        held = client._holdings.known(lease)
        until(lambda: held.lost is not None)
        with pytest.raises(errors.LeaseLost):
            client.commit(lease, OLD, NEW)
    assert gateway.committer.orders == []
    assert audit.events() == ["acquired", "expired"]


def test_each_lease_has_one_beginning_and_one_end_that_says_how(start_stock: Any, audit: Audit) -> None:
    stock, client = start_stock(fail=["miscellaneous"])
    tokens = []
    with client.lease(REPOSITORY, "/a", hostname="dag/run/task try 1") as lease:
        tokens.append(lease.token)
        with pytest.raises(errors.CommitFailed):
            client.commit(lease, OLD, NEW)
    with client.lease(REPOSITORY, "/b", hostname="h") as lease:
        tokens.append(lease.token)
        client.commit(lease, OLD, NEW)
        client.drop(lease)
    with client.lease(REPOSITORY, "/c", hostname="h") as lease:
        tokens.append(lease.token)
        stock.expire_all()
        client.acquire(REPOSITORY, "/d", hostname="h")  # which clears away what has expired
    assert audit.events() == [
        "acquired", "dropped", "acquired", "committed", "acquired", "acquired", "expired",
    ]  # fmt: skip
    dropped, committed = audit.lines[1], audit.lines[3]
    assert dropped.fields["outcome"] == "given back, after a commit that failed: commit-failed"  # type: ignore[attr-defined]
    assert dropped.fields["holder"] == "dag/run/task try 1"  # type: ignore[attr-defined]
    assert committed.fields["outcome"] == "revision 1"  # type: ignore[attr-defined]
    text = "\n".join(line.getMessage() + str(line.__dict__) for line in audit.lines)
    assert not [token for token in tokens if token in text]
    assert "repository='test.example.org' path='/a'" in text


def test_a_gateway_that_is_gone_leaves_an_abandoned_lease_in_the_log(
    start_gateway: Callable[..., RunningGateway], audit: Audit
) -> None:
    gateway = start_gateway()
    with gateway.client(retries=0).lease(REPOSITORY, "/a", hostname="h"):
        gateway.stop()
    assert audit.events() == ["acquired", "abandoned"]
    assert audit.lines[-1].fields["trace"]  # type: ignore[attr-defined]


def test_the_two_kinds_of_gateway_are_told_apart_once(start_stock: Any, gateway: RunningGateway) -> None:
    stock, client = start_stock()
    assert not client.judges_bases()
    assert not client.judges_bases()
    assert stock.calls == ["GET "]
    assert gateway.client().judges_bases()


def test_our_service_gives_each_lease_its_fence_and_tells_those_who_wait_their_place(
    gateway: RunningGateway, audit: Audit
) -> None:
    client = gateway.client()
    with client.lease(REPOSITORY, "/a", hostname="first") as lease:
        assert lease.epoch is not None
        with pytest.raises(errors.PathBusy, match=r"place 1 of 1 who wait, expected in \d"):
            gateway.client().acquire(REPOSITORY, "/a", hostname="second")
    assert audit.lines[0].fields["epoch"] == lease.epoch  # type: ignore[attr-defined]


def test_bodies_are_signed_for_a_gateway_that_offers_it_and_for_no_other(
    gateway: RunningGateway,
    start_stock: Callable[..., tuple[StockGateway, GatewayClient]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signed: dict[str, bool] = {}
    request = urllib3.PoolManager.request

    def noted(pool: urllib3.PoolManager, method: str, url: str, **settings: Any) -> urllib3.BaseHTTPResponse:
        if "/leases/" in url:
            signed[method] = "X-Nightshift-Body-Signature" in settings["headers"]
        return request(pool, method, url, **settings)

    monkeypatch.setattr(urllib3.PoolManager, "request", noted)
    stock, _ = start_stock(renews=True)
    for url, key, offers in ((gateway.url, ("rootkey", "root-secret"), True), (stock.url, ("k", "s3cr3t"), False)):
        with GatewayClient(url, *key) as client:
            lease = client.acquire(REPOSITORY, "/a", hostname="h")
            client.renew(lease)
            client.commit(lease, OLD, NEW)
        assert signed == {"PATCH": offers, "POST": offers}
