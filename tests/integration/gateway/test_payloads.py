"""Payloads against the real service: what is right is stored and counted, what is damaged is refused by name."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from include.cvmfs.coordination import generation
from include.cvmfs.coordination.generation import CollectionPhase, Generation
from include.cvmfs.format.hashes import Algorithm, hash_bytes
from include.gateway.protocol import authorization
from include.gateway.service.clock import SystemClock
from include.gateway.service.commits.intake import MAX_HEADER_BYTES
from include.gateway.service.config import AcceptedKey, RepositoryConfig
from include.gateway.service.leases.lease_rows import Received
from include.gateway.service.leases.lease_table import LeaseTable, digest_of
from include.storage.errors import Unavailable
from include.storage.store import Store
from tests.fakes.gateway_service import FakeCommitter, ManualClock
from tests.fakes.memorystore import MemoryStore
from tests.fakes.packs import Pack
from tests.fakes.stockpublisher import FORM, StockWire, payload_message
from tests.integration.gateway.conftest import NEW, OLD, _never
from tests.site import RunningGateway

REPOSITORY = "stock.example.org"
OK = {"status": "ok"}
INVALID = {"status": "error", "reason": "invalid lease"}
HELLO, EMPTY = zlib.compress(b"hello\n"), zlib.compress(b"")


@dataclass
class Desk:
    """A service with one repository in a store, and a stock client with a lease on ``/a``."""

    service: RunningGateway
    store: Store
    wire: StockWire
    token: str

    def send(self, pack: Pack, *, legacy: bool = True) -> dict[str, object]:
        return self.wire.payload(self.token, pack, legacy=legacy)

    def stored(self) -> set[str]:
        return {meta.key for meta in self.store.list("")}


StartDesk = Callable[..., Desk]


@pytest.fixture
def start_desk(start_gateway: Callable[..., RunningGateway]) -> StartDesk:
    def start(store: Store | None = None, **settings: object) -> Desk:
        used = store or MemoryStore()
        keys = (AcceptedKey("stock", "secret"), AcceptedKey("other", "other-secret"))
        service = start_gateway(
            **{"max_lease_time_s": 60.0, **settings},
            repositories={REPOSITORY: RepositoryConfig(lambda: used, _never, keys)},
        )
        wire = StockWire(service.url, "stock", "secret")
        return Desk(service, used, wire, wire.acquire(f"{REPOSITORY}/a")["session_token"])

    return start


@pytest.fixture
def desk(start_desk: StartDesk) -> Desk:
    return start_desk()


def pack_of(*contents: bytes, suffix: str = "") -> Pack:
    return Pack.of([(hash_bytes(one, suffix=suffix), one) for one in contents])


def key_of(content: bytes, suffix: str = "") -> str:
    return hash_bytes(content, suffix=suffix).key


# -- what is right


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy route", "token route"])
def test_objects_are_stored_under_their_hashes_and_under_nothing_else(start_desk: StartDesk, legacy: bool) -> None:
    objects = [
        (hash_bytes(data, algorithm, suffix), data)
        for data, algorithm, suffix in [
            (HELLO, Algorithm.SHA1, ""),
            (EMPTY, Algorithm.RMD160, "P"),
            (b"catalog", Algorithm.SHAKE128, "C"),
            (b"", Algorithm.SHA1, ""),
        ]
    ]
    desk = start_desk()
    assert desk.send(Pack.of(objects), legacy=legacy) == OK
    assert {key: desk.store.get(key) for key in desk.stored()} == {name.key: data for name, data in objects}


def test_no_object_that_is_stored_already_is_sent_again_unless_it_is_cut(desk: Desk) -> None:
    store = desk.store
    store.put(key_of(HELLO), HELLO)
    store.put(key_of(EMPTY), EMPTY[:-1])
    before = store.counters.puts
    assert desk.send(pack_of(HELLO, EMPTY, EMPTY, b"new")) == OK
    assert store.counters.puts == before + 2
    assert store.get(key_of(EMPTY)) == EMPTY


def test_counters_stay_with_the_lease_over_a_restart_and_go_with_it(
    start_desk: StartDesk, start_gateway: Callable[..., RunningGateway]
) -> None:
    desk = start_desk()
    desk.send(pack_of(HELLO, EMPTY))
    desk.send(pack_of(HELLO, b"catalog", suffix="C"))
    desk.send(pack_of(EMPTY))
    desk.service.stop()
    table = LeaseTable(desk.service.config.state, clock=SystemClock(), max_lease_time_s=60)
    row = table.valid(digest_of(desk.token))
    assert row is not None
    assert table.payloads(row.epoch) == Received(3, 2, 1, 2, 22 + 14 + 7, 14 + 7)
    assert table.payload_generation(row.epoch) == "gc:0"
    table.drop(digest_of(desk.token), lambda _: True).result()
    assert table.payloads(row.epoch) == Received()
    table.close()


# -- what is damaged


def flipped(pack: Pack) -> bytes:
    data = bytearray(b"".join(pack.blocks()))
    data[-1] ^= 1
    return bytes(data)


GOOD = pack_of(EMPTY, HELLO)
HEAD, DATA = GOOD.header.format(), b"".join(GOOD.blocks())
# each damage of a pack: unit/gateway/test_pack.py
DAMAGES: dict[str, tuple[str, int | str, bytes, str]] = {
    "wrong digest": ("0" * 40, len(HEAD), DATA, "has the SHA-1"),
    "header_size beyond all": (GOOD.digest, MAX_HEADER_BYTES + 1, DATA, "header too big"),
    "ends inside an object": (GOOD.digest, len(HEAD), DATA[:-3], "its header announces"),
    "a wrong byte": (GOOD.digest, len(HEAD), flipped(GOOD), "has another hash"),
}


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "token"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_payload_is_refused_and_says_what_is_wrong(desk: Desk, name: str, legacy: bool) -> None:
    digest, size, data, said = DAMAGES[name]
    reply = desk.wire.raw_payload(desk.token, digest, size, data, legacy=legacy)
    assert reply["status"] == "error"
    assert reply["reason"].startswith("invalid payload: ")
    assert said in reply["reason"]
    assert desk.stored() <= {key_of(EMPTY)}, "only what was verified is stored"
    assert desk.send(GOOD) == OK, "the lease is as good as before"


def test_an_object_with_a_name_of_its_own_is_refused(desk: Desk) -> None:
    header = b"V2\nS14\nN1\n--\nN %b 14 LmN2bWZzcHVibGlzaGVk\n" % hash_bytes(HELLO).text.encode()
    reply = desk.wire.raw_payload(desk.token, hashlib.sha1(header).hexdigest(), len(header), header + HELLO)
    assert reply["reason"] == "other_error"
    assert "named object" in reply["detail"]
    assert desk.stored() == set()


@pytest.mark.parametrize(
    ("message", "size", "expected"),
    [
        (b"not json", None, b"invalid request body\n"),
        (b"[]", None, b"invalid request body\n"),
        (b'{"session_token":"TOKEN","payload_digest":"d","header_size":5}', None, b"invalid request body\n"),
        (b'{"session_token":"TOKEN","payload_digest":"d","header_size":"x"}', None, b"invalid header_size\n"),
        (b'{"session_token":"TOKEN","payload_digest":"d","header_size":"-1"}', None, b"invalid header_size\n"),
        (b'{"session_token":"TOKEN","payload_digest":"d"}', None, b"invalid header_size\n"),
        (b"{}", -1, b"missing message-size header\n"),
    ],
)  # fmt: skip
def test_a_malformed_message_gets_the_texts_of_the_stock_gateway(
    desk: Desk, message: bytes, size: int | None, expected: bytes
) -> None:
    text = message.replace(b"TOKEN", desk.token.encode())
    count = len(text) if size is None else None
    for route, signed in (("/payloads", text), (f"/payloads/{desk.token}", desk.token.encode())):
        status, body = desk.wire.call("POST", route, text + b"x", signed=signed, message_size=count)
        assert (status, body) == (400, expected)


def test_signatures_cover_the_message_or_the_token(desk: Desk) -> None:
    head = payload_message(desk.token, GOOD.digest, len(HEAD))
    token = desk.token.encode()
    for route, signed in (("/payloads", head + b" "), ("/payloads", token), (f"/payloads/{desk.token}", head)):
        status, body = desk.wire.call("POST", route, head + DATA, signed=signed, message_size=len(head))
        assert (status, body) == (200, b'{"reason":"invalid_hmac","status":"error"}')


def test_only_the_holder_may_send_and_only_while_he_holds(desk: Desk) -> None:
    other = StockWire(desk.service.url, "other", "other-secret")
    for legacy in (True, False):
        assert other.payload(desk.token, GOOD, legacy=legacy) == INVALID
        assert desk.wire.payload("A" * 52 + "====", GOOD, legacy=legacy) == INVALID
        assert desk.wire.payload("not a token", GOOD) == INVALID
    desk.wire.drop(desk.token)
    assert desk.send(GOOD) == INVALID
    assert desk.stored() == set()


def test_a_lease_that_ends_while_the_payload_comes_is_not_told_ok(start_desk: StartDesk) -> None:
    clock = ManualClock()
    store = MemoryStore(lambda verb, key: clock.advance(61) if verb == "put" else None)
    desk = start_desk(store, clock=clock)
    reply = desk.send(GOOD)
    assert reply["reason"] == "invalid lease"


def test_a_lease_that_ends_stops_a_payload_on_its_way(start_desk: StartDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.gateway.service.http.payloads._LOOK_AT_LEASE_EVERY_S", -1.0)
    clock = ManualClock()
    store = MemoryStore(lambda verb, key: clock.advance(61) if verb == "put" else None)
    desk = start_desk(store, clock=clock)
    pack = pack_of(HELLO, *(os.urandom(1 << 20) for _ in range(12)))
    assert desk.send(pack) == INVALID
    assert len(desk.stored()) < 12, "not all of it was taken"


def test_what_came_is_counted_for_prometheus(desk: Desk) -> None:
    desk.send(pack_of(HELLO, HELLO, EMPTY))
    desk.wire.raw_payload(desk.token, GOOD.digest, len(HEAD), flipped(GOOD))
    page = urllib.request.urlopen(f"{desk.service.url}/metrics", timeout=20).read().decode()
    labels = f'repository="{REPOSITORY}"'
    for line in (
        f'payloads_total{{outcome="stored",{labels}}} 1.0', f'payloads_total{{outcome="refused",{labels}}} 1.0',
        f'payload_objects_total{{found="new",{labels}}} 2.0', f'payload_objects_total{{found="there",{labels}}} 1.0',
        f"payload_bytes_total{{{labels}}} 22.0",
    ):  # fmt: skip
        assert f"nightshift_gateway_{line}\n" in page


# -- what is slow, large or broken off


def test_a_body_that_is_too_large_is_refused_with_the_limit(start_desk: StartDesk) -> None:
    desk = start_desk(max_payload_bytes=1 << 16)
    reply = desk.send(pack_of(os.urandom(1 << 17)))
    assert reply["http"] == 413
    assert reply["reason"].startswith("payload too large: 131")
    assert reply["reason"].endswith("at most 65536 are taken\n")
    assert desk.stored() == set()


def test_a_refusal_reaches_a_client_that_is_still_sending(desk: Desk) -> None:
    data = HEAD + os.urandom(20 << 20)
    reply = desk.wire.raw_payload(desk.token, "0" * 40, len(HEAD), data)
    assert "has the SHA-1" in reply["reason"]


def opened_payload(desk: Desk, sent: bytes, length: int) -> socket.socket:
    """A connection on which a payload has begun."""
    address = urlsplit(desk.service.url)
    connection = socket.create_connection((address.hostname or "", address.port or 0), timeout=20)
    head = payload_message(desk.token, GOOD.digest, len(HEAD))
    lines = [
        "POST /api/v1/payloads HTTP/1.1", "Host: h", f"Authorization: {authorization('stock', 'secret', head)}",
        f"Message-Size: {len(head)}", f"Content-Length: {len(head) + length}", f"Content-Type: {FORM}", "", "",
    ]  # fmt: skip
    connection.sendall("\r\n".join(lines).encode() + head + sent)
    return connection


def test_clients_that_hang_up_leave_nothing_behind(start_desk: StartDesk) -> None:
    desk = start_desk(payloads_at_once=1)
    threads = threading.active_count()
    for cut in (0, 10, len(HEAD), len(DATA) - 1):
        opened_payload(desk, DATA[:cut], len(DATA)).close()
    assert desk.send(GOOD) == OK, "none of them kept the one place"
    deadline = time.monotonic() + 20
    while threading.active_count() > threads + 3:  # the service's own
        assert time.monotonic() < deadline, [thread.name for thread in threading.enumerate()]
        threading.Event().wait(0.01)


def test_a_body_that_does_not_come_is_given_up(start_desk: StartDesk) -> None:
    desk = start_desk(payload_idle_timeout_s=1.0, payloads_at_once=1)
    with opened_payload(desk, DATA[:-1], len(DATA)) as connection:
        assert b"408" in connection.recv(4096).partition(b"\r\n")[0]
    assert desk.send(GOOD) == OK


def test_payloads_beyond_the_limit_wait_for_their_turn(start_desk: StartDesk) -> None:
    holding, go_on = threading.Event(), threading.Event()
    at_once, most = 0, 0
    lock = threading.Lock()

    def before(verb: str, key: str) -> None:
        nonlocal at_once, most
        if verb == "put":
            with lock:
                at_once += 1
                most = max(most, at_once)
            holding.set()
            assert go_on.wait(20)
            with lock:
                at_once -= 1

    desk = start_desk(MemoryStore(before), payloads_at_once=2)
    with ThreadPoolExecutor(5) as senders:
        replies = senders.map(desk.send, [pack_of(b"%d" % number) for number in range(5)])
        assert holding.wait(20)
        go_on.set()
    assert list(replies) == [OK] * 5
    assert most <= 2


def test_a_store_that_fails_is_told_and_the_payload_can_be_sent_again(start_desk: StartDesk) -> None:
    broken = [True]

    def before(verb: str, key: str) -> None:
        if verb == "put" and broken[0]:
            raise Unavailable("store: 503", key=key, cause="503")

    desk = start_desk(MemoryStore(before))
    reply = desk.send(GOOD)
    assert (reply["reason"], reply["detail"]) == ("uploader_error", "store: 503")
    broken[0] = False
    assert desk.send(GOOD) == OK


# -- collections


def at(store: Store, phase: CollectionPhase, number: int = 1, swept: int = 0) -> None:
    condemned = "0" * 64 if phase.has_list else None
    document = Generation(number, phase, datetime(2026, 1, 1, tzinfo=UTC), condemned, swept=swept)
    store.put(generation.KEY, document.format())


def test_a_commit_is_judged_by_what_its_first_payload_saw_of_collections(start_desk: StartDesk) -> None:
    committer = FakeCommitter()
    desk = start_desk(committer=committer)
    at(desk.store, CollectionPhase.SWEEPING, 4, swept=17)
    assert desk.send(GOOD) == OK
    at(desk.store, CollectionPhase.IDLE, 4)
    assert desk.send(pack_of(b"later")) == OK
    desk.wire.commit(desk.token, OLD, NEW)
    assert [(order.generation, order.since) for order in committer.orders] == [("", "4:sweeping+17")]
