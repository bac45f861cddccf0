"""The gateway's state with leases in it, and a conversation of our client with our service, byte for byte."""

from __future__ import annotations

import http.client
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.revision.lineage import KnownRoot
from include.gateway.client.client import GatewayClient
from include.gateway.errors import GatewayError
from include.gateway.paths import LeasePath
from include.gateway.service.leases.lease_table import LeaseTable, Spent, digest_of
from include.gateway.service.leases.payload_rows import Received
from include.gateway.service.leases.tokens import token_of
from tests.compat.writers.store import OLDER, ROOT
from tests.fakes.gateway_service import FakeCommitter, ManualClock
from tests.integration.gateway.conftest import REPOSITORY, RunningGateway, service_config

KEY = ("rootkey", "root-secret")
HOLDER = "nightly_install_main/scheduled__2026-11-21T00:30:00+00:00/artifact.publish[3] try 2"
OURS = ("authorization", "message-size", "content-type", "retry-after", "allow")
BY_CHANCE = ("x-nightshift-trace",)
LEASE_S = 100.0
_PID = re.compile(r'"pid":\d+')


def fill_state(file: Path) -> dict[str, str]:
    """Leases that are held, one that is spent, payloads, revisions, a repository that is disabled. Returns tokens."""
    table = LeaseTable(file, clock=ManualClock(), max_lease_time_s=LEASE_S)
    try:
        tokens = {path: _take(table, path) for path in ("/held", "/paid", "/spent")}
        paid, spent = (table.valid(digest_of(tokens[path])) for path in ("/paid", "/spent"))
        assert paid is not None
        assert spent is not None
        table.add_payload(digest_of(tokens["/paid"]), paid.epoch, Received(1, 2, 3, 4, 5, 6), "4:idle").result()
        table.begin_switch([(digest_of(tokens["/spent"]), spent.epoch)]).result()
        table.settle([Spent(digest_of(tokens["/spent"]), spent, (OLDER, ROOT), 7)]).result()
        table.enable("plain.example.org", False).result()
        table.remember_revisions(REPOSITORY, [KnownRoot(OLDER, 6), KnownRoot(ROOT, 7)])
        table.notice_clock().result()
        return tokens
    finally:
        table.close()


def _take(table: LeaseTable, path: str) -> str:
    token = partial(token_of, KEY[1], f'{{"path":"{path}","request":"1"}}'.encode())
    place = LeasePath(REPOSITORY, path)
    granted: Any = table.acquire(place, key_id=KEY[0], hostname=HOLDER, version=2, token=token).result()
    return str(granted.token)


class Wire:
    """Between a client and a service, or in its place: keeps what is sent and replied, in order.

    `upstream`: the service; `replies`: what was recorded, given instead.
    """

    def __init__(self, upstream: str = "", replies: list[dict[str, Any]] | None = None) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._upstream = urlsplit(upstream)
        self._replies = replies
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                reply = wire.answer(self.command, self.path, dict(self.headers.items()), body)
                data = reply["body"].encode()
                self.send_response_only(reply["status"])
                for name, value in {**reply["headers"], "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        request = {"method": method, "path": path, "headers": ours(headers), "body": body.decode()}
        if self._replies is None:
            reply = send(self._upstream.hostname or "", self._upstream.port or 0, request)
        else:
            reply = self._replies[len(self.exchanges)]
        self.exchanges.append({"request": request, "reply": reply})
        return reply

    @contextmanager
    def listening(self) -> Iterator[Wire]:
        thread = Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)


def ours(headers: dict[str, str]) -> dict[str, str]:
    """The headers of the protocol, but for values drawn by chance; those of the HTTP library may differ."""
    lower = {name.lower(): value for name, value in headers.items()}
    kept = {name: value for name, value in lower.items() if name in OURS or name.startswith("x-nightshift-")}
    return {name: "" if name in BY_CHANCE else kept[name] for name in sorted(kept)}


def send(host: str, port: int, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a recorded request."""
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        body = request["body"].encode()
        connection.request(request["method"], request["path"], body or None, request["headers"])
        reply = connection.getresponse()
        text = _PID.sub('"pid":0', reply.read().decode())
        return {"status": reply.status, "headers": ours(dict(reply.getheaders())), "body": text}
    finally:
        connection.close()


@contextmanager
def service(folder: Path, **changes: Any) -> Iterator[RunningGateway]:
    """The service, its clock standing still, on an empty state in a folder or on the one that is there."""
    config = service_config(folder, max_lease_time_s=LEASE_S, **changes)
    gateway = RunningGateway(config, FakeCommitter(), ManualClock()).start()
    try:
        yield gateway
    finally:
        gateway.stop()


def converse(url: str) -> None:
    """Every call that our client makes, with its refusals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda size=16: "5a" * (size or 16))
        with GatewayClient(url, *KEY, retries=0) as client:
            client.ping()
            client.repositories()
            lease = client.acquire(REPOSITORY, "/arch/x86", hostname=HOLDER)
            with GatewayClient(url, "subkey", "sub-secret", retries=0) as other:
                _refused(lambda: other.acquire(REPOSITORY, "/arch/x86/gcc", hostname="another"))
                _refused(lambda: other.acquire(REPOSITORY, "/elsewhere", hostname="another"))
            _refused(lambda: client.acquire("unknown.example.org", "", hostname=HOLDER))
            client.leases()
            client.renew(lease)
            client.renew(lease, wanted_s=50)
            client.commit(lease, OLDER, ROOT, tag=NewTag("b1", "main, build b1: é"), generation="4:idle")
            _refused(lambda: client.renew(lease))
            dropped = client.acquire(REPOSITORY, "/é", hostname=HOLDER)
            client.drop(dropped)
            client.acquire(REPOSITORY, "/left/behind", hostname=HOLDER)
        with GatewayClient(url, "adminkey", "admin-secret", retries=0) as administrator:
            administrator.drop_by_path(REPOSITORY, "/left")
        with GatewayClient(url, "rootkey", "another secret", retries=0) as stranger:
            _refused(lambda: stranger.acquire(REPOSITORY, "/arch", hostname=HOLDER))


def _refused(call: Any) -> None:
    with suppress(GatewayError):
        call()
        raise AssertionError("it was not refused")


LOOKS = ("/health", "/api/v1/waiting", "/api/v1/leases/unknown", "/api/v1/nowhere")
"""Calls that no client of ours makes, each a GET."""
