"""Every exchange that was recorded with the stock gateway, replayed against our service: same status, same body.

Where we answer otherwise on purpose, the exchange stands by name in DELIBERATE, with the reason.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from include.gateway.protocol import authorization, split_authorization
from tests.fakes.gateway_service import ManualClock
from tests.fakes.stockgateway import StockGateway
from tests.integration.gateway.conftest import Counting

RECORDING = Path(__file__).parent / "wire" / "gateway-lease-api.txt"
SECRETS = {
    "rootkey": "root-secret", "subkey": "sub-secret", "plainkey": "plain-secret",
    "adminkey": "admin-secret", "stranger": "strange-secret", "nokey": "unknown",
}  # fmt: skip
TOKEN = re.compile(r"[A-Z2-7]{52}====")

BY_COMPONENT = "paths conflict by component, not by SQL LIKE: siblings, '_' and letter case do not matter"
OWNED = "a lease belongs to the key that took it: holding the token is not enough"
CHECKED = "malformed paths are refused instead of becoming leases that no commit can use"

GRANTED = r'\{"max_api_version":3,"session_token":"TOKEN","status":"ok"\}'
INVALID = r'\{"reason":"invalid lease","status":"error"\}'

DELIBERATE: dict[str, tuple[str, str]] = {
    "sibling sharing string prefix (/arch/x86_64)": (GRANTED, BY_COMPONENT),
    "LIKE underscore: ask /axb": (GRANTED, BY_COMPONENT),
    "case: ask /case": (GRANTED, BY_COMPONENT),
    "drop with other key (rootkey lease dropped by stranger)": (INVALID, OWNED),
    "commit by other (valid) key than the one that leased": (INVALID, OWNED),
    "dot-dot path": (r'\{"reason":"invalid lease path: component \'\.\.\'","status":"error"\}', CHECKED),
    "double slash path": (r'\{"reason":"invalid lease path: component \'\'","status":"error"\}', CHECKED),
}
# The stock gateway dropped or never gave these leases; what follows expects that.
DROPS_OF_LEASES_NEVER_GIVEN = {"dot-dot path", "double slash path"}


@dataclass(frozen=True)
class Message:
    start: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Exchange:
    name: str
    request: Message
    reply: Message

    @property
    def at(self) -> datetime:
        return parsedate_to_datetime(self.reply.headers["date"])


def _message(lines: list[str], mark: str) -> Message:
    stripped = [line[2:] if line.startswith(mark + " ") else line.removeprefix(mark) for line in lines]
    end = next(number for number, line in enumerate(stripped) if not line.strip())
    headers = dict(line.split(": ", 1) for line in stripped[1:end])
    lower = {name.lower(): value for name, value in headers.items()}
    body = "\n".join(stripped[end + 1 :]).encode()
    return Message(stripped[0], lower, body[: int(lower.get("content-length", 0))])


def _exchanges() -> list[Exchange]:
    found = []
    for block in re.split(r"(?m)^=== ", RECORDING.read_text())[1:]:
        name, _, rest = block.partition("\n")
        lines = rest.split("\n")
        first = next(number for number, line in enumerate(lines) if line.startswith("< HTTP/"))
        found.append(Exchange(name, _message(lines[:first], ">"), _message(lines[first:], "<")))
    return found


EXCHANGES = _exchanges()


def _masked(body: bytes) -> str:
    text = TOKEN.sub("TOKEN", body.decode())
    text = re.sub(r'"time_remaining":"[0-9.hmsµn]+"', '"time_remaining":"DURATION"', text)
    text = re.sub(r'"expires":"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,3})? \+0000 UTC"', '"expires":"TIME"', text)
    return re.sub(r'"hostname":"127\.0\.0\.1:\d+"', '"hostname":"REMOTE"', text)


class Replay:
    """Sends recorded requests with our tokens in place of theirs, signed with our secrets where they were valid."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._ours: dict[str, str] = {}

    def send(self, exchange: Exchange) -> tuple[int, dict[str, str], bytes]:
        method, target, _ = exchange.request.start.split(" ")
        for theirs, ours in self._ours.items():
            target = target.replace(theirs, ours)
        body = exchange.request.body
        for theirs, ours in self._ours.items():
            body = body.replace(theirs.encode(), ours.encode())
        headers = {
            name: value for name, value in exchange.request.headers.items() if name in ("authorization", "message-size")
        }
        if "authorization" in headers and b"invalid_hmac" not in exchange.reply.body:
            key_id = split_authorization(headers["authorization"])[0]  # type: ignore[index]
            headers["authorization"] = authorization(key_id, SECRETS[key_id], _signed(target, body, headers))
        status, replied, got = self.raw(method, target, body, headers)
        theirs_now, ours_now = TOKEN.search(exchange.reply.body.decode()), TOKEN.search(got.decode())
        if theirs_now and ours_now:
            self._ours[theirs_now[0]] = ours_now[0]
        return status, replied, got

    def raw(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=20)
        try:
            connection.request(method, target, body if method != "GET" else None, headers)
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def drop(self, token: str, key_id: str) -> None:
        header = authorization(key_id, SECRETS[key_id], token.encode())
        status, _, body = self.raw("DELETE", f"/api/v1/leases/{token}", b"", {"authorization": header})
        assert (status, body) == (200, b'{"status":"ok"}')

    def ours(self, theirs: str) -> str:
        return self._ours[theirs]


def _signed(target: str, body: bytes, headers: dict[str, str]) -> bytes:
    path = target.removeprefix("/api/v1/")
    if path.startswith("leases-by-path/"):
        return target.encode()
    if path == "payloads":
        return body[: int(headers["message-size"])]
    return path.partition("/")[2].encode() if path.startswith(("leases/", "payloads/")) else body


def test_the_recording_is_read_whole() -> None:
    assert len(EXCHANGES) == 91
    assert set(DELIBERATE) <= {exchange.name for exchange in EXCHANGES}
    assert all(int(exchange.reply.headers["content-length"]) == len(exchange.reply.body) for exchange in EXCHANGES)


def test_every_recorded_exchange_is_answered_as_the_stock_gateway_did(start_gateway: Callable[..., object]) -> None:
    clock = ManualClock()
    service = start_gateway(clock=clock, max_lease_time_s=8.0)  # as it was recorded
    replay = Replay(service.url)  # type: ignore[attr-defined]
    now = EXCHANGES[0].at
    skipped_drop = False
    last_rootkey_lease = ""
    for exchange in EXCHANGES:
        clock.advance((exchange.at - now).total_seconds())
        now = exchange.at
        if skipped_drop:
            skipped_drop = False
            assert exchange.name == "drop"
            continue
        status, headers, body = replay.send(exchange)
        expected, _ = DELIBERATE.get(exchange.name, (re.escape(_masked(exchange.reply.body)), ""))
        assert re.fullmatch(expected, _masked(body)), f"{exchange.name}: {body!r} instead of {exchange.reply.body!r}"
        assert status == int(exchange.reply.start.split(" ")[1]), exchange.name
        assert headers["content-type"] == exchange.reply.headers["content-type"], exchange.name
        for name in ("allow", "location", "x-content-type-options"):
            assert headers.get(name) == exchange.reply.headers.get(name), exchange.name
        assert headers["content-length"] == str(len(body)), exchange.name

        # Bring the leases back to what the rest of the recording starts from.
        skipped_drop = exchange.name in DROPS_OF_LEASES_NEVER_GIVEN
        if exchange.name == "new lease root/arch/x86":
            last_rootkey_lease = json.loads(body)["session_token"]
        elif exchange.name.startswith("drop with other key"):
            replay.drop(last_rootkey_lease, "rootkey")
        elif DELIBERATE.get(exchange.name, ("",))[0] == GRANTED:
            replay.drop(json.loads(body)["session_token"], "rootkey")
        elif exchange.name.startswith("commit by other"):
            token = split_token(exchange.request.start)
            replay.drop(replay.ours(token), "rootkey")


def split_token(start: str) -> str:
    found = TOKEN.search(start)
    assert found
    return found[0]


# -- the fake stock gateway answers as the real one was recorded, surprises included


LEFT_OUT = re.compile(
    "route|wrong method|^trailing slash$|^repos?$|repo unknown|restricted|not of this repo|drop sub|expir|payload|repo$"
    "|default-key|commit, no payload|commit by other|after commit|list leases$|no hostname|fallback"
)
"""Routing, one key for all, repositories, payloads, and what depends on how much time had passed."""


def covered() -> Iterator[Exchange]:
    skip_drop = False
    for exchange in EXCHANGES:
        if skip_drop and exchange.name.startswith("drop"):
            skip_drop = False
            continue
        if LEFT_OUT.search(exchange.name):
            skip_drop = exchange.name == "default-key repo, ok"
            continue
        yield exchange


def test_every_exchange_that_it_covers_is_answered_as_the_real_one_did() -> None:
    keys = {name: secret for name, secret in SECRETS.items() if name != "nokey"}
    seen: list[str] = []
    with StockGateway(Counting(), keys, admins={"adminkey"}) as stock:  # type: ignore[arg-type]
        replay = Replay(stock.url)
        for exchange in covered():
            status, _, body = replay.send(exchange)
            expected = (int(exchange.reply.start.split(" ")[1]), _masked(exchange.reply.body))
            assert (status, _masked(body)) == expected, exchange.name
            seen.append(exchange.name)
    assert len(seen) >= 45
    for surprise in ("sibling sharing", "LIKE underscore: ask", "case: ask", "drop with other key", "dot-dot path"):
        assert any(name.startswith(surprise) for name in seen), surprise
