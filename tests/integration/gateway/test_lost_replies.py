"""A network that fails between request and reply, and gateways of other versions."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from include.gateway import errors
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import Lease
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.refused import refused
from tests.integration.gateway.conftest import NEW, OLD, REPOSITORY
from tests.site import RunningGateway

TOKEN = "A" * 52 + "===="
NO_COUNTERS = "could not obtain statistics counters: no statistics counters for lease r.org/a"


@pytest.fixture
def proxy(gateway: RunningGateway) -> Iterator[FaultProxy]:
    with FaultProxy(gateway.url) as proxy:
        yield proxy


def lose_replies(proxy: FaultProxy, times: int) -> None:
    proxy.cut(times=times, after_forwarding=True)


@pytest.fixture
def through_proxy(proxy: FaultProxy) -> Iterator[GatewayClient]:
    with GatewayClient(proxy.url, "rootkey", "root-secret", timeout_s=20) as client:
        yield client


def test_a_lost_reply_to_acquire_is_asked_for_again_and_brings_the_same_lease(
    proxy: FaultProxy, through_proxy: GatewayClient
) -> None:
    lose_replies(proxy, 1)
    lease = through_proxy.acquire(REPOSITORY, "/a", hostname="user@host")
    assert [request.method for request in proxy.seen] == ["POST", "GET", "POST"]
    # another publication of the same user
    with refused(errors.PathBusy, own=False):
        through_proxy.acquire(REPOSITORY, "/a", hostname="user@host")
    assert through_proxy.commit(lease, OLD, NEW) == 1


def test_a_lease_whose_replies_were_all_lost_is_had_with_the_next_attempt(
    proxy: FaultProxy, through_proxy: GatewayClient
) -> None:
    lose_replies(proxy, 3)
    with pytest.raises(errors.ReplyLost):
        through_proxy.acquire(REPOSITORY, "/a", hostname="h")
    proxy.clear()
    assert len(through_proxy.leases()) == 1
    with pytest.raises(errors.PathBusy):
        through_proxy.acquire(REPOSITORY, "/a", hostname="another")
    assert through_proxy.drop(through_proxy.acquire(REPOSITORY, "/a", hostname="h"))


@pytest.mark.parametrize(
    ("hostname", "lost", "own"),
    [("user@host", False, False), ("user@host", True, True), ("dag/run/task try 1", False, True)],
)
def test_on_a_stock_gateway_a_lease_counts_as_our_own_only_if_no_other_can_have_taken_it(
    hostname: str, lost: bool, own: bool
) -> None:
    busy = (200, '{"status":"path_busy","time_remaining":"7200s"}')
    row = {"key_id": "k", "path": "r.org/a", "hostname": hostname, "expires": "2026-11-22 05:00:00 +0000 UTC"}
    listed = (200, json.dumps({"status": "ok", "data": {"r.org/a": row}}))
    greeting = (200, '{"welcome":"stock"}')
    gateway = ScriptedGateway(*([None, greeting] if lost else []), busy, listed)
    client = gateway.client()
    if lost:
        with pytest.raises(errors.ReplyLost):
            client.acquire("r.org", "/a", hostname=hostname)
    with refused(errors.PathBusy, own=own) as caught:
        client.acquire("r.org", "/a", hostname=hostname)
    assert caught.value.holder is not None


def test_a_lost_reply_to_a_commit_is_asked_for_again_and_the_commit_made_once(
    gateway: object, proxy: FaultProxy, through_proxy: GatewayClient
) -> None:
    lease = through_proxy.acquire(REPOSITORY, "/a", hostname="h")
    lose_replies(proxy, 1)
    assert through_proxy.commit(lease, OLD, NEW) == 1
    assert len(gateway.committer.orders) == 1  # type: ignore[attr-defined]


def test_calls_that_do_no_harm_are_repeated(proxy: FaultProxy, through_proxy: GatewayClient) -> None:
    lease = through_proxy.acquire(REPOSITORY, "/a", hostname="h")
    lose_replies(proxy, 2)
    assert len(through_proxy.leases()) == 1
    lose_replies(proxy, 1)
    assert through_proxy.drop(lease) is False  # the first one arrived
    assert through_proxy.leases() == []


class ScriptedGateway:
    """Answers each request with the next of its replies, then closes; an empty reply is a lost one."""

    def __init__(self, *replies: tuple[int, str] | None) -> None:
        self._replies = list(replies)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for reply in self._replies:
            connection, _ = self._listener.accept()
            with connection:
                self.requests.append(connection.recv(65536).split(b" ")[0].decode())
                if reply is not None:
                    status, text = reply
                    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text.encode())}\r\nConnection: close\r\n\r\n"
                    connection.sendall((head + text).encode())
        self._listener.close()

    def client(self, **settings: float) -> GatewayClient:
        return GatewayClient(self.url, "k", "s3cr3t", timeout_s=20, retries=0, **settings)  # type: ignore[arg-type]


LEASE = Lease(TOKEN, "r.org", "/a", "h", "k")


def refusal(reason: str) -> tuple[int, str]:
    return 200, json.dumps({"reason": reason, "status": "error"})


@pytest.mark.parametrize("second", [refusal("invalid lease"), refusal(NO_COUNTERS), None])
def test_a_commit_whose_reply_cannot_be_had_any_more_is_unclear(second: tuple[int, str] | None) -> None:
    with pytest.raises(errors.CommitUnclear):
        ScriptedGateway(None, second).client().commit(LEASE, OLD, NEW)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refusal(NO_COUNTERS), errors.LEASE_SPENT),
        (refusal("worker 'commit' call failed: possible that the receiver crashed: EOF"), errors.RECEIVER_FAILED),
        (refusal("runtime error: PANIC: /path/file.cc : 5\n failed"), errors.RECEIVER_FAILED),
        (refusal("lease_expired"), errors.LeaseLost),
        (refusal("unheard of"), errors.GatewayError),
        ((500, "database is locked\n"), errors.GATEWAY_FAILED),
        ((502, "<html>"), errors.GATEWAY_FAILED),
        ((400, "invalid request body\n"), errors.BAD_REQUEST),
        ((301, ""), errors.UNEXPECTED_REPLY),
        ((200, "<html>a portal</html>"), errors.UNEXPECTED_REPLY),
        ((200, "[]"), errors.UNEXPECTED_REPLY),
        ((200, '{"status":"ok"}'), errors.UNEXPECTED_REPLY),
        ((200, '{"status":"ok","final_revision":"many"}'), errors.UNEXPECTED_REPLY),
        ((200, '{"status":7}'), errors.UNEXPECTED_REPLY),
    ],
)
def test_every_outcome_of_a_commit_on_any_gateway_is_a_typed_error(
    reply: tuple[int, str], kind: errors.GatewayErrorKind
) -> None:
    with pytest.raises(errors.GatewayError) as caught:
        ScriptedGateway(reply).client().commit(LEASE, OLD, NEW)
    assert caught.value.code == kind.code
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [('"1h59m58.5s"', 7198.5), ("42", 42.0), ('"42"', 42.0), ('"soon"', 0.0), ("[]", 0.0)]
)
def test_the_time_left_is_read_in_both_spellings(text: str, seconds: float) -> None:
    gateway = ScriptedGateway((200, f'{{"status":"path_busy","time_remaining":{text}}}'), (500, "no list"))
    with pytest.raises(errors.PathBusy) as caught:
        gateway.client().acquire("r.org", "/a", hostname="h")
    assert caught.value.time_remaining_s == seconds
    assert caught.value.holder is None


def test_that_a_gateway_renews_no_leases_is_found_out_once() -> None:
    gateway = ScriptedGateway((405, "Method Not Allowed\n"))
    client = gateway.client()
    for _ in range(3):
        with pytest.raises(errors.NotOffered):
            client.renew(LEASE)
    assert gateway.requests == ["PATCH"]


def test_a_reply_that_does_not_come_in_time_is_lost_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.gateway.client.client._GREETING_S", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    client = GatewayClient(f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1", "k", "s", timeout_s=0.2, retries=0)
    with listener, refused(errors.ReplyLost):
        client.acquire("r.org", "/a", hostname="h")


def test_a_gateway_that_is_not_there_is_unreachable_and_names_its_url() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = GatewayClient(url, "k", "s", retries=1)
        with pytest.raises(errors.GatewayUnreachable, match=url) as caught:
            client.commit(LEASE, OLD, NEW)
    assert caught.value.retryable
    assert not isinstance(caught.value, errors.ReplyLost)
