"""Exchanges with the genuine FTS REST 3.13.4: the client treats each reply, and the embedded service replies so too."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from include.errors import code_of
from include.fts.client import BanOf, FtsClient
from include.fts.errors import FtsError
from include.fts.jobs import FtsFile, FtsJob, JobAnswers
from include.fts.transport import BearerToken
from lab.fts.callers import Caller
from lab.fts.config import FtsServiceConfig
from lab.fts.http.app import SUBJECT, create_fts_app
from lab.fts.transfers import Transfers
from tests.fakes.ftsserver import FtsServer

Exchange = dict[str, Any]
EXCHANGES: list[Exchange] = json.loads((Path(__file__).parent / "wire" / "exchanges.json").read_text())
"""Without `as`: the embedded service does not come to that. `UUID`, `TIME` and `VO` stand for what differs."""

NOW = 1_795_000_000.0
KNOWN, UNKNOWN = str(uuid.UUID(int=7)), str(uuid.UUID(int=8))
JOB = FtsJob((FtsFile("https://a.example.org/f", "https://b.example.org/f"),))
CALLS: dict[str, Callable[[FtsClient], object]] = {
    r"GET /whoami": lambda client: client.whoami(),
    r"GET /delegation/\w+": lambda client: client.delegation_ends(client.whoami()),
    r"POST /jobs": lambda client: client.submit(JOB),
    r"GET /jobs/\w+(,\w*)?": lambda client: client.status([KNOWN], files=()),
    r"GET /jobs/\w+,\?files=.*": lambda client: client.status([KNOWN]),
    r"POST /jobs/\w+,?": lambda client: client.set_priority([KNOWN], 5),
    r"DELETE /jobs/(JOB|ENDED),?": lambda client: client.cancel([KNOWN]),
    r"DELETE /jobs/\w+/files/\w+": lambda client: client.cancel_files(KNOWN, [1]),
    r"GET /ban/se": lambda client: client.bans(BanOf.STORAGE),
    r"GET /ban/dn": lambda client: client.bans(BanOf.USER),
    r"POST /ban/se": lambda client: client.ban(BanOf.STORAGE, "mock://x.lab"),
    r"GET /optimizer/current": lambda client: client.link_decisions(),
}
"""Calls of the client, by the requests that they send."""


def _call(exchange: Exchange) -> Callable[[FtsClient], object] | None:
    return next((call for form, call in CALLS.items() if re.fullmatch(form, exchange["request"])), None)


def _named(exchange: Exchange) -> str:
    return str(exchange["name"])


@pytest.fixture
def server() -> Iterator[FtsServer]:
    with FtsServer() as running:
        yield running


@pytest.mark.parametrize("exchange", list(filter(_call, EXCHANGES)), ids=_named)
def test_the_client_treats_each_reply(server: FtsServer, exchange: Exchange) -> None:
    call, (method, path) = _call(exchange), exchange["request"].split(" ")
    assert call is not None
    text = exchange["body"] if exchange["content_type"] == "text/html" else json.dumps(exchange["body"])
    body = text.replace("UUID", KNOWN).replace("TIME", "2026-11-26T20:22:58").encode()
    server.method = "unauthenticated" if exchange.get("as") == "anon" else "certificate"
    first = re.escape("/" + path.split("/")[1])
    server.answer(method, f"^{first}", exchange["status"], body, Content_Type=exchange["content_type"])
    error, status = None, exchange["status"]
    with FtsClient(server.url, BearerToken("hidden")) as client:
        try:
            answer = call(client)
            if isinstance(answer, JobAnswers) and answer.errors:
                raise answer.errors[KNOWN]
        except FtsError as refused:
            error, status = code_of(refused), refused.status
    assert error == exchange.get("error")
    assert status in (exchange["status"], None)
    assert server.count(method, path if path == "/jobs" else ".") >= 1
    assert path != "/jobs" or server.count("POST", "/jobs") == 1, "a submission is sent once"


def test_anonymous_is_an_identity_and_not_an_error(server: FtsServer) -> None:
    server.answer("GET", "^/whoami$", 200, next(one["body"] | {"base_id": KNOWN} for one in EXCHANGES))
    with FtsClient(server.url) as client:
        assert client.whoami().anonymous


class Reply(NamedTuple):
    status: int
    kind: str
    text: str


class Embedded:
    """The service with two jobs of `user1`, one of which has ended, a banned storage and a banned user."""

    def __init__(self, folder: Path) -> None:
        admin, user = _caller("host"), _caller("user1")
        tokens = folder / "tokens"
        tokens.write_text("known-token ann\n")
        config = FtsServiceConfig(folder / "fts.sqlite", tokens=tokens, admins=frozenset({admin.user}))
        app = create_fts_app(config, clock=lambda: NOW)
        self.transfers: Transfers = app.state.transfers
        left = {"user1": 2 * 86400, "user2": 2 * 86400, "host": 2 * 86400, "short": 1800, "expired": -2}
        for name, seconds in left.items():
            self.transfers.delegate(_caller(name).user, {"ends": NOW + seconds})
        self._app = app
        ended, job = (self.transfers.job(user, self._submitted(user, sid)) for sid in ("ended", "batch"))
        self.transfers.cancel(ended, NOW)
        self._ids = {
            "JOB": job.job_id, "ENDED": ended.job_id, "UNKNOWN": UNKNOWN, "FILE": str(job.files[0].file_id),
            "MANY": ",".join([UNKNOWN] * 230),
        }  # fmt: skip
        self.asked("host", "POST", "/ban/se", {"storage": "mock://banned.lab", "message": "because"})
        self.asked("host", "POST", "/ban/dn", {"user_dn": _caller("banned").user, "message": "bad"})

    def asked(self, name: str, method: str, path: str, sent: Any = None) -> Reply:
        """The reply to a request of a caller."""
        ids = self._ids | {"DELEGATION": _caller(name).delegation_id}
        path = re.sub("|".join(ids), lambda form: ids[form[0]], path)
        body = sent.encode() if isinstance(sent, str) else json.dumps(sent).encode()
        raw, _, query = path.partition("?")
        token = [(b"authorization", b"Bearer another")] if name == "stranger" else []
        scope = {
            "type": "http", "method": method, "path": raw, "raw_path": raw.encode(), "query_string": query.encode(),
            "scheme": "http",
            "headers": [(b"content-type", b"application/json"), *token],
            SUBJECT: None if name == "anon" else _caller(name).user,
        }  # fmt: skip
        messages: list[Any] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body}

        async def send(message: object) -> None:
            messages.append(message)

        asyncio.run(self._app(scope, receive, send))
        start, *parts = messages
        kind = dict(start["headers"])[b"content-type"].decode().partition(";")[0]
        return Reply(start["status"], kind, b"".join(part.get("body", b"") for part in parts).decode())

    def _submitted(self, user: Caller, sid: str) -> str:
        file = {"sources": ["mock://src.lab/p0?size=10"], "destinations": ["mock://dst.lab/p0"]}
        params = {"id_generator": "deterministic", "sid": sid}
        return self.transfers.submit(user, json.dumps({"files": [file], "params": params}).encode(), NOW)


def _caller(name: str) -> Caller:
    return Caller(f"/DC=lab/DC=test/CN={'localhost' if name == 'host' else name}", "certificate")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    opened = Embedded(tmp_path)
    yield opened
    opened.transfers.close()


@pytest.mark.parametrize("exchange", [one for one in EXCHANGES if "as" in one], ids=_named)
def test_the_embedded_service_replies_as_fts(embedded: Embedded, exchange: Exchange) -> None:
    name, (method, path) = exchange["as"], exchange["request"].split(" ")
    default = {"files": [{"sources": ["mock://src.lab/n"], "destinations": ["mock://dst.lab/n"]}]}
    reply = embedded.asked(name, method, path, exchange.get("sent", default))
    assert (reply.status, reply.kind) == (exchange["status"], exchange["content_type"]), reply.text
    if reply.kind == "text/html":
        assert _shown(reply.text) == _shown(exchange["body"])
        return
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", reply.text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "VO", text)
    assert _of(exchange["body"], json.loads(text)) == exchange["body"]


def _of(recorded: Any, value: Any) -> Any:
    """Keep those members of a reply that the recorded one has."""
    if isinstance(recorded, dict) and isinstance(value, dict):
        return {key: _of(recorded[key], value[key]) for key in recorded if key in value}
    if isinstance(recorded, list) and isinstance(value, list) and len(recorded) == len(value):
        return [_of(*pair) for pair in zip(recorded, value, strict=True)]
    return value


def _shown(html: str) -> list[str]:
    """The title and the text of a page."""
    parts = re.findall(r"<(?:title|p)>(.*?)</", html, re.DOTALL)
    return [" ".join(re.sub("<.*?>", "", part).split()) for part in parts]
