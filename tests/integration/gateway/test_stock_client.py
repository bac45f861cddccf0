"""What the stock client sends on a lease, byte for byte, signatures and form content type included."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.service.commits.queue import CommitOrder
from include.gateway.service.config import AcceptedKey, RepositoryConfig
from tests.fakes.gateway_service import FakeCommitter
from tests.integration.gateway.conftest import RunningGateway, _never

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
def gateway(start_gateway: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch) -> RunningGateway:
    """A service that hands out the tokens of the recording: its signatures are over them."""
    tokens = iter(found[0].decode() for number in (ACQUIRE, AGAIN) if (found := TOKEN.search(answered(number).body)))
    monkeypatch.setattr("include.gateway.service.leases.lease_table.new_token", lambda: next(tokens))
    return start_gateway(
        committer=FakeCommitter(revision=1),
        max_lease_time_s=120.0,
        repositories={REPOSITORY: RepositoryConfig(_never, _never, (KEY,))},
        keys=(),
    )


def test_the_recording_is_that_of_the_stock_client() -> None:
    for number in (ACQUIRE, BUSY, DROP, UNKNOWN_KEY, AGAIN, COMMIT):
        request = sent(number)
        assert b"User-Agent: cvmfs/" in request
        assert b"Content-Type: application/x-www-form-urlencoded" in request
        assert len(request.partition(b"\r\n\r\n")[2]) == _length(request)


def test_a_session_of_the_stock_client_is_answered_as_by_the_stock_gateway(gateway: RunningGateway) -> None:
    client = StockClient(gateway)
    for number in (ACQUIRE, BUSY, DROP, UNKNOWN_KEY, AGAIN, COMMIT):
        assert client.send(sent(number)) == answered(number), number
    (order,) = gateway.committer.orders
    assert order == CommitOrder(REPOSITORY, "/sub", ObjectHash.parse(OLD), ObjectHash.parse(NEW), "", "")
    with gateway.client("gw1key") as reader:
        assert reader.leases() == []


def test_a_changed_byte_in_its_body_is_not_what_it_signed(gateway: RunningGateway) -> None:
    changed = sent(ACQUIRE).replace(b"gw1.example.org/dir1", b"gw1.example.org/dir2")
    assert StockClient(gateway).send(changed) == answered(UNKNOWN_KEY)
