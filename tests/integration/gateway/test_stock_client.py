"""Requests of the stock client on leases and with payloads, byte for byte, with their signatures and content type."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from include.cvmfs.errors import ObjectMissing, TagError
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.gateway.protocol import authorization
from include.gateway.service.commits.intake import PackHeader, PackReader
from include.gateway.service.commits.queue import CommitOrder
from include.gateway.service.config import AcceptedKey, RepositoryConfig
from tests.fakes.gateway_service import FakeCommitter
from tests.fakes.memorystore import MemoryStore
from tests.fakes.packs import Pack
from tests.fakes.stockpublisher import StockWire
from tests.integration.gateway.conftest import _never
from tests.site import RunningGateway

RECORDING = Path(__file__).parent / "wire" / "stock-client-requests.bin"
REPOSITORY, KEY = "gw1.example.org", AcceptedKey("gw1key", "gw1secret")
OLD, NEW = "f7d5f6a16ec19fd069eaedd8c21837d37935e2f5C", "5bf13622339717c6eae6f21e2d13a2d242542a47C"
TOKEN = re.compile(rb"[A-Z2-7]{52}====")
# payloads were cut for the recording, and are not taken anyway
ACQUIRE, BUSY, DROP, UNKNOWN_KEY, AGAIN, COMMIT = "1", "2", "3", "4", "5", "8"


def _recorded() -> dict[str, bytes]:
    data, found = RECORDING.read_bytes(), {}
    for head in re.finditer(rb"(?m)^#(\d+[<>]) [\d.]+ (\d+) bytes\n", data):
        found[head[1].decode()] = data[head.end() : head.end() + int(head[2])]
    return found


RECORDED = _recorded()


def sent(number: str) -> bytes:
    return RECORDED[f"{number}>"]


@dataclass(frozen=True)
class Reply:
    """What the client looks at; the time that is left is not always the same."""

    status: bytes
    content_type: bytes
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> Reply:
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        assert int(headers[b"content-length"]) == len(body)
        left = re.sub(rb'"time_remaining":"(1m)?[0-9.]+s"', b'"time_remaining":"LEFT"', body)
        return cls(first.rstrip(), headers[b"content-type"], left)


def answered(number: str) -> Reply:
    """The recorded reply."""
    return Reply.parse(RECORDED[f"{number}<"])


class StockClient:
    """Speaks as it did, each request on a connection of its own."""

    def __init__(self, gateway: RunningGateway) -> None:
        address = urlsplit(gateway.url)
        self._address = (address.hostname or "", address.port or 0)

    def send(self, request: bytes) -> Reply:
        with socket.create_connection(self._address, timeout=20) as connection:
            connection.sendall(request)
            reply = b""
            while b"\r\n\r\n" not in reply or len(reply.partition(b"\r\n\r\n")[2]) < _length(reply):
                block = connection.recv(65536)
                assert block, f"the connection was closed after {reply!r}"
                reply += block
        return Reply.parse(reply)


def _length(reply: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", reply)
    return int(found[1]) if found else 0


@pytest.fixture
def session(start_gateway: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch) -> RunningGateway:
    """A service that hands out the tokens of the recording: its signatures are over them."""
    tokens = iter(found[0].decode() for number in (ACQUIRE, AGAIN) if (found := TOKEN.search(answered(number).body)))
    monkeypatch.setattr("include.gateway.service.leases.lease_table.new_token", lambda: next(tokens))
    return start_gateway(
        committer=FakeCommitter(revision=1),
        max_lease_time_s=120.0,
        repositories={REPOSITORY: RepositoryConfig(_never, _never, (KEY,))},
        keys=(),
    )


def test_a_session_of_the_stock_client_is_answered_as_by_the_stock_gateway(session: RunningGateway) -> None:
    client = StockClient(session)
    for number in (ACQUIRE, BUSY, DROP, UNKNOWN_KEY, AGAIN, COMMIT):
        assert client.send(sent(number)) == answered(number), number
    (order,) = session.committer.orders
    assert order == CommitOrder(REPOSITORY, "/sub", ObjectHash.parse(OLD), ObjectHash.parse(NEW), "", "")
    with session.client("gw1key") as reader:
        assert reader.leases() == []


def test_a_changed_byte_in_its_body_is_not_what_it_signed(session: RunningGateway) -> None:
    changed = sent(ACQUIRE).replace(b"gw1.example.org/dir1", b"gw1.example.org/dir2")
    assert StockClient(session).send(changed) == answered(UNKNOWN_KEY)


# -- payloads and commits: the replies are compared field by field; objects that were cut in the recording are ours


EXCHANGES = (Path(__file__).parent / "wire" / "gateway-payload-commit.txt").read_bytes()
DATA_PACK, CATALOG_PACK = "6", "7"
OURS = b"an object of 25 bytes .. "
OK = {"status": "ok"}


def recorded(name: str) -> tuple[bytes, dict[str, object] | None]:
    """Request body and reply of one exchange; no reply where the stock gateway gave none."""
    blocks = {part.partition(b"\n")[0].strip().decode(): part for part in re.split(rb"(?m)^=== ", EXCHANGES)}
    block = blocks[name]
    request, _, reply = block.partition(b"\n< HTTP/1.1 200 OK")
    body = request.partition(b"\n> \n")[2] or request.partition(b"\n> \r\n")[2]
    found = re.findall(rb"(?m)^< (\{.*\})", reply)
    return body.removeprefix(b"> ").rstrip(b"\r\n"), json.loads(found[-1]) if found else None


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def committer() -> FakeCommitter:
    return FakeCommitter(revision=8)


@pytest.fixture
def gateway(
    start_gateway: Callable[..., RunningGateway],
    monkeypatch: pytest.MonkeyPatch,
    store: MemoryStore,
    committer: FakeCommitter,
) -> RunningGateway:
    """A service that gives out the token that the recorded payloads are signed over."""
    token = TOKEN.search(answered(AGAIN).body)
    assert token is not None
    monkeypatch.setattr("include.gateway.service.leases.lease_table.new_token", token[0].decode)
    return start_gateway(
        committer=committer,
        max_lease_time_s=120.0,
        repositories={REPOSITORY: RepositoryConfig(lambda: store, _never, (KEY,))},
        keys=(),
    )


@pytest.fixture
def wire(gateway: RunningGateway) -> StockWire:
    return StockWire(gateway.url, KEY.id, KEY.secret)


# -- the stock client's own requests


@pytest.mark.parametrize(("number", "objects", "size"), [(CATALOG_PACK, 3, 6723)])
def test_the_header_of_a_recorded_pack_is_read_and_written_as_it_came(number: str, objects: int, size: int) -> None:
    head, _, body = sent(number).partition(b"\r\n\r\n")
    found = re.search(rb"Message-Size: (\d+)", head)
    assert found
    message, data = json.loads(body[: int(found[1])]), body[int(found[1]) :]
    text = data[: int(message["header_size"])]
    header = PackHeader.parse(text)
    assert header.format() == text
    assert (len(header.objects), header.total) == (objects, size)
    assert {one.hash.suffix for one in header.objects} == {"C"}
    reader = PackReader(int(message["header_size"]), message["payload_digest"])
    list(reader.feed(data[: len(text) + 1]))
    assert reader.header == header


def test_a_recorded_payload_is_understood_up_to_where_its_objects_were_cut(gateway: RunningGateway) -> None:
    client = StockClient(gateway)
    assert client.send(sent(AGAIN)) == answered(AGAIN)
    head, _, body = sent(CATALOG_PACK).partition(b"\r\n\r\n")
    length = int(re.findall(rb"Content-Length: (\d+)", head)[0])
    whole = body.partition(b"\n...[cut]...")[0][:length].ljust(length, b"\0")
    reply = client.send(head + b"\r\n\r\n" + whole)
    assert (reply.status, reply.content_type) == (b"HTTP/1.1 200 OK", answered(CATALOG_PACK).content_type)
    assert b"invalid payload: object dcbd1930b6c9fc1e4e1a14ae241098640b049eeeC of 2365 bytes" in reply.body
    assert client.send(sent(COMMIT)).body == b'{"final_revision":9,"status":"ok"}'


def test_a_payload_in_the_form_of_the_recorded_one_gets_its_reply(gateway: RunningGateway, store: MemoryStore) -> None:
    client = StockClient(gateway)
    assert client.send(sent(AGAIN)) == answered(AGAIN)
    head, _, body = sent(CATALOG_PACK).partition(b"\r\n\r\n")
    message = json.loads(body[: int(re.findall(rb"Message-Size: (\d+)", head)[0])])
    pack = Pack.of([(hash_bytes(one, suffix="C"), one) for one in (b"one", b"another")])
    text = body[: body.index(b"}") + 1]
    text = text.replace(message["payload_digest"].encode(), pack.digest.encode())
    text = text.replace(b'"162"', b'"%d"' % len(pack.header.format()))
    data = text + b"".join(pack.blocks())
    for name, value in {
        b"Authorization": authorization(KEY.id, KEY.secret, text).encode(),
        b"Message-Size": b"%d" % len(text),
        b"Content-Length": b"%d" % len(data),
    }.items():
        head = re.sub(rb"(?m)^" + name + rb": [^\r]*", name + b": " + value, head)
    assert client.send(head + b"\r\n\r\n" + data) == answered(CATALOG_PACK) == answered(DATA_PACK)
    assert sorted(store.objects) == sorted(one.hash.key for one in pack.header.objects)


# -- exchanges with the stock gateway: right, and wrong


def announced(name: str) -> tuple[dict[str, str], bytes]:
    """The message of a recorded payload, and the header of its pack with an object of ours in it."""
    body, _ = recorded(name)
    message = json.loads(body[: body.index(b"}") + 1])
    header = body[body.index(b"}") + 1 :].replace(b"\r\n", b"\n")
    end = header.index(b" 25\n") + 4
    return message, header[:end]


def send_as(wire: StockWire, name: str, *, data: bytes = OURS, digest: str | None = None) -> dict[str, object]:
    """A recorded payload again, on our lease."""
    token = wire.acquire(f"{REPOSITORY}/q1")["session_token"]
    message, header = announced(name)
    theirs = re.search(rb"C ([0-9a-f]{40}) 25\n", header)
    assert theirs
    if theirs[1] != b"1" * 40:
        header = header.replace(theirs[1], hash_bytes(OURS).text.encode())
    right = digest or hashlib.sha1(header, usedforsecurity=False).hexdigest()
    assert len(header) == 59
    return wire.raw_payload(token, right, message["header_size"], header + data)


def test_a_right_payload_is_answered_as_recorded(wire: StockWire, store: MemoryStore) -> None:
    assert send_as(wire, "payload: one object, right") == recorded("payload: one object, right")[1] == OK
    assert store.objects == {hash_bytes(OURS).key: OURS}


DELIBERATE = {
    "payload: wrong digest": "a header that is not the announced one; the stock gateway says ok and stores nothing",
    "payload: wrong header_size": "a header of another size; the stock gateway says ok and stores nothing",
    "payload: object whose hash is not its content": "a wrong object; the stock receiver dies of it",
    "payload: truncated body": "a body that is too short; the stock gateway never answers",
}


@pytest.mark.parametrize("name", DELIBERATE)
def test_a_damaged_payload_is_refused_where_the_stock_gateway_says_ok_or_dies(
    wire: StockWire, store: MemoryStore, name: str
) -> None:
    digest = announced(name)[0]["payload_digest"] if "digest" in name else None
    reply = send_as(wire, name, data=OURS[:-3] if "truncated" in name else OURS, digest=digest)
    assert reply["status"] == "error"
    assert str(reply["reason"]).startswith("invalid payload: ")
    assert store.objects == {}
    theirs = recorded(name)[1]
    assert theirs in (None, OK) or "crashed" in str(theirs["reason"])  # type: ignore[index]


COMMITS: dict[str, tuple[Exception | None, dict[str, object]]] = {
    "commit: old root = new root = current": (None, {"status": "ok", "final_revision": 9}),
    "commit: new_root_hash not uploaded": (ObjectMissing("data/22/22C"), {"status": "error", "reason": "unknown_root"}),
    "commit: old root unknown": (ObjectMissing("data/33/33C"), {"status": "error", "reason": "unknown_root"}),
    "commit: tag name that exists (v1)": (
        TagError("v1", "exists already"), {"status": "error", "reason": "miscellaneous: tag"},
    ),
    "commit: garbage hashes": (None, {"status": "error", "reason": "invalid old_root_hash: "}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMITS)
def test_a_recorded_commit_ends_as_it_did_there_with_a_reason_that_names_what_is_wrong(
    wire: StockWire, committer: FakeCommitter, name: str
) -> None:
    failure, expected = COMMITS[name]
    body, theirs = recorded(name)
    assert theirs is not None
    committer.fail_next = failure
    token = wire.acquire(f"{REPOSITORY}/q1")["session_token"]
    status, reply = wire.call("POST", f"/leases/{token}", body, signed=token.encode())
    ours = json.loads(reply)
    assert status == 200
    assert ours["status"] == theirs["status"] == expected["status"]
    assert ours.get("final_revision") == expected.get("final_revision")
    assert str(ours.get("reason", "")).startswith(str(expected.get("reason", "")))
    assert isinstance(theirs.get("final_revision"), int) is isinstance(ours.get("final_revision"), int)
