"""The gateway's application without a socket, on a clock set by hand; it stops, goes on or dies at any point."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from include.gateway.protocol import authorization
from include.gateway.service.commits.committer import StoreCommitter
from include.gateway.service.commits.queue import Point
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import API, create_app
from include.gateway.service.leases.lease_table import LeaseTable
from tests.fakes.gateway_service import ManualClock
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, public_key, signer

LEASE_S = 100.0
KEY, ADMIN = AcceptedKey("worker", "not-a-secret"), AcceptedKey("admin", "not-a-secret-either", admin=True)
HOLDS = [point for point in Point if point not in (Point.REQUEST_READ, Point.QUEUED, Point.REPLYING)]
"""The points that a commit passes in a thread of its own, so that it can stand there while the service goes on."""


class Unforeseen(logging.Handler):
    """What the service logs with a traceback: nothing of the kind is to happen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._log = logging.getLogger("include.gateway.service")

    def begin(self) -> None:
        """The log goes here and nowhere else, until ``end``: there is a lot of it."""
        self.seen.clear()
        self._log.addHandler(self)
        self._log.propagate = False

    def end(self) -> None:
        self._log.removeHandler(self)
        self._log.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(logging.Formatter().formatException(record.exc_info))


UNFORESEEN = Unforeseen()


class Killed(BaseException):
    """Nothing of what would have come after happens, as after kill -9."""


@dataclass
class Gate:
    """Where the next commit is to stand still."""

    at: Point | None = None
    dead: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)
    passed: deque[tuple[str, Point]] = field(default_factory=lambda: deque(maxlen=40))
    """The last points that were reached, with the thread's name: a failure shows them, since it may not come again."""

    def __call__(self, point: Point) -> None:
        self.passed.append((threading.current_thread().name, point))
        if self.dead:
            raise Killed
        if point is not self.at:
            return
        self.at = None
        self.reached.set()
        assert self.opened.wait(30), "the test never let the commit go on"
        if self.dead:
            raise Killed


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def start(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Any) -> Any:
        return self.start(work).result(30)


@dataclass(frozen=True)
class Answer:
    """HTTP status, headers by lower-case name, and the JSON object."""

    status: int
    headers: Mapping[str, str]
    members: Mapping[str, Any]


class Service:
    """One life of a service on a state file and a store."""

    def __init__(self, loop: Loop, store: MemoryStore, state: Path, clock: ManualClock) -> None:
        self._loop = loop
        self.gate = Gate()
        config = ServiceConfig(
            state,
            {FQRN: RepositoryConfig(lambda: store, signer, (KEY,), lambda: [public_key()])},
            max_lease_time_s=LEASE_S,
            keys=(ADMIN,),
        )
        self.table = LeaseTable(state, clock=clock, max_lease_time_s=LEASE_S)
        committer = StoreCommitter(config, lambda _: signer(), self.table)  # here, where it can stand at any step
        committer.start()
        self._app = create_app(lambda: config, committer=committer, table=self.table, clock=clock, on_point=self.gate)
        self._life: AbstractAsyncContextManager[Any] = self._app.router.lifespan_context(self._app)
        loop.run(self._life.__aenter__())

    def stop(self) -> None:
        """As SIGTERM does: what is under way ends."""
        self._loop.run(self._life.__aexit__(None, None, None))
        self.table.close()

    def die(self, standing: Sequence[Future[Answer]]) -> None:
        """As kill -9 does: whatever stands or waits comes to nothing from here on, and nobody is told."""
        self.gate.dead = True
        self.gate.opened.set()
        for call in standing:
            call.cancel()
        self.table.close()
        self._loop.start(self._life.__aexit__(None, None, None))  # what is left of it has nothing to write to

    # -- calls

    def acquire(self, path: str) -> Answer:
        body = json.dumps({"path": f"{FQRN}{path or '/'}", "api_version": "3", "hostname": "machine"}).encode()
        return self._now("POST", "/leases", body, body)

    def renew(self, token: str, seconds: int | None) -> Answer:
        body = b"" if seconds is None else json.dumps({"expires_in_sec": seconds}).encode()
        return self._now("PATCH", f"/leases/{token}", body, token.encode())

    def drop(self, token: str) -> Answer:
        return self._now("DELETE", f"/leases/{token}", b"", token.encode())

    def drop_below(self, path: str) -> Answer:
        url = f"/leases-by-path/{FQRN}{path or '/'}"
        return self._now("DELETE", url, b"", (API + url).encode(), ADMIN)

    def enable(self, enabled: bool) -> Answer:
        body = json.dumps({"enable": enabled}).encode()
        return self._now("POST", f"/repos/{FQRN}", body, body, ADMIN)

    def leases(self) -> set[str]:
        """The leased paths, as anybody may ask."""
        data = self._now("GET", "/leases").members["data"]
        return {path.removeprefix(FQRN).removesuffix("/") for path in data}

    def commit(self, token: str, old: str, new: str, tag: str, generation: str) -> Future[Answer]:
        members = {"old_root_hash": old, "new_root_hash": new, "tag_name": tag, "generation": generation}
        return self._loop.start(self._call("POST", f"/leases/{token}", json.dumps(members).encode(), token.encode()))

    def settle(self) -> None:
        """Until the loop has done all that it can do without a thread's help."""
        self._loop.run(_turns())

    def _now(
        self, method: str, path: str, body: bytes = b"", signed: bytes | None = None, key: AcceptedKey = KEY
    ) -> Answer:
        return self._loop.run(self._call(method, path, body, signed, key))

    async def _call(
        self, method: str, path: str, body: bytes = b"", signed: bytes | None = None, key: AcceptedKey = KEY
    ) -> Answer:
        headers = [(b"content-length", b"%d" % len(body))]
        if signed is not None:
            headers.append((b"authorization", authorization(key.id, key.secret, signed).encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": API + path, "raw_path": (API + path).encode(), "query_string": b"", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 4929), "root_path": "",
        }  # fmt: skip
        sent: list[Any] = []
        body_given = False

        async def receive() -> dict[str, Any]:
            nonlocal body_given
            if body_given:
                await asyncio.Event().wait()  # the caller stays
            body_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        head = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        text = b"".join(message.get("body", b"") for message in sent[1:])
        assert sent[0]["status"] < 500 or method == "GET", text
        return Answer(sent[0]["status"], head, json.loads(text) if text.startswith(b"{") else {"text": text.decode()})


async def _turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)
