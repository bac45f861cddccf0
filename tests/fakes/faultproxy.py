"""A reverse proxy that does to a real server what networks and overload do: errors, cuts, delays, lost writes.

It forwards requests byte for byte, the Host header included, so that S3 signatures stay valid.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import urlsplit

Kind = Literal["answer", "cut", "hold", "pretend"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that reached the proxy, and the status that went back; 0 for a connection that was cut."""

    method: str
    path: str
    status: int
    forwarded: bool


@dataclass(slots=True)
class Fault:
    """What befalls the next ``times`` matching requests (None: all). Made by the methods of ``FaultProxy``.

    A request matches by its ``method`` (None: any), its ``path`` (a pattern, searched), and its headers (``when``).
    ``peer``: the client's port, and ``host`` its address, once a request has arrived; they tell whose request that is.
    ``done``: it was answered, or could not be because its client has gone.
    """

    kind: Kind
    path: re.Pattern[str]
    method: str | None = None
    when: Callable[[Mapping[str, str]], bool] = lambda _: True
    times: int | None = 1
    status: int = 0
    code: str = ""
    after_forwarding: bool = False
    body_bytes: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    struck: int = 0
    peer: int = 0
    host: str = ""
    arrived: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let held requests, and all that match later, go on."""
        self.go.set()

    def wait(self, timeout_s: float = 120) -> None:
        """Until the first matching request has arrived; with ``after_forwarding``, until its answer is held."""
        assert self.arrived.wait(timeout_s), "no matching request arrived"


class FaultProxy:
    """A context manager; without faults it only forwards. Faults are tried in the order in which they were set."""

    def __init__(self, upstream: str, *, timeout_s: float = 60, host: str = "127.0.0.1") -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self.upstream = (parts.hostname, parts.port or 80)
        self._host = host
        self.timeout_s = timeout_s
        self.seen: list[Seen] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server((host, 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Scheme, host and port of the proxy."""
        return f"http://{self._host}:{self._server.server_port}"

    def answer(self, status: int, *, code: str = "", headers: Mapping[str, str] | None = None, **match: Any) -> Fault:
        """Answer with an error (an S3 one with ``code``), before or after the server has done what was asked."""
        return self._add("answer", status=status, code=code, headers=dict(headers or {}), **match)

    def cut(self, *, body_bytes: int | None = None, after_forwarding: bool = False, **match: Any) -> Fault:
        """Cut the connection: before or after the server has done it, or after ``body_bytes`` of the answer's body."""
        after = after_forwarding or body_bytes is not None
        return self._add("cut", body_bytes=body_bytes, after_forwarding=after, **match)

    def hold(self, **match: Any) -> Fault:
        """Keep matching requests (or their answers) until ``release`` of the returned fault is called."""
        return self._add("hold", **match)

    def pretend(self, **match: Any) -> Fault:
        """Say 200 without forwarding: a store that loses what it acknowledged."""
        return self._add("pretend", **{"method": "PUT", "status": 200, **match})

    def clear(self) -> None:
        """Forget all faults, let held requests go, and forget what was seen."""
        with self._lock:
            faults, self._faults = self._faults, []
            self.seen.clear()
        for fault in faults:
            fault.release()

    def count(self, method: str | None = None, path: str = "") -> int:
        """How many requests have been answered or cut."""
        with self._lock:
            return sum(1 for one in self.seen if method in (None, one.method) and re.search(path, one.path))

    def close(self) -> None:
        """Stop; open connections are cut."""
        self.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_fault(self, method: str, path: str, headers: Mapping[str, str]) -> Fault | None:
        """The fault that strikes this request, counted."""
        with self._lock:
            for fault in self._faults:
                if fault.times is not None and fault.struck >= fault.times:
                    continue
                if fault.method in (None, method) and fault.path.search(path) and fault.when(headers):
                    fault.struck += 1
                    return fault
        return None

    def note(self, seen: Seen) -> None:
        """Remember a request."""
        with self._lock:
            self.seen.append(seen)

    def _add(self, kind: Kind, *, path: str = "", **fields: Any) -> Fault:
        fault = Fault(kind, path=re.compile(path), **fields)
        with self._lock:
            self._faults.append(fault)
        return fault


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body leave in one piece

        def setup(self) -> None:
            super().setup()
            self.upstream: http.client.HTTPConnection | None = None

        def finish(self) -> None:
            if self.upstream is not None:
                self.upstream.close()
            with contextlib.suppress(OSError, ValueError):
                super().finish()

        def handle_any(self) -> None:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.wfile.flush()
            body = self._read_body()
            fault = proxy.take_fault(self.command, self.path, self.headers)
            if fault is not None:
                fault.host, fault.peer = self.client_address[:2]
                if not (fault.kind == "hold" and fault.after_forwarding):
                    fault.arrived.set()
            try:
                self._serve(body, fault)
            finally:
                if fault is not None:
                    fault.done.set()

        def _serve(self, body: bytes, fault: Fault | None) -> None:
            answer = None
            if fault is not None:
                if fault.kind == "hold" and not fault.after_forwarding:
                    fault.go.wait(proxy.timeout_s)
                if fault.kind == "pretend":
                    answer = _Answer(200, "OK", [("ETag", '"pretended"')], b"")
                elif fault.kind in ("answer", "cut") and not fault.after_forwarding:
                    answer = _error(fault)
            forwarded = answer is None
            if answer is None:
                try:
                    answer = self._forward(body)
                except (OSError, http.client.HTTPException):
                    self._note(0, forwarded=True)
                    self._hang_up()
                    return
                if fault is not None and fault.after_forwarding:
                    if fault.kind == "hold":
                        fault.arrived.set()
                        fault.go.wait(proxy.timeout_s)
                    elif fault.kind == "answer":
                        answer = _error(fault)
            cut = fault is not None and fault.kind == "cut"
            self._note(0 if cut else answer.status, forwarded=forwarded)
            if cut and (fault is None or fault.body_bytes is None):
                self._hang_up()
                return
            try:
                self._send(answer, fault.body_bytes if cut and fault is not None else None)
            except OSError:
                self.close_connection = True
            if cut:
                self._hang_up()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

        def _note(self, status: int, *, forwarded: bool) -> None:
            proxy.note(Seen(self.command, self.path, status, forwarded))

        def _read_body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
                pieces = []
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    pieces.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(pieces)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _forward(self, body: bytes) -> _Answer:
            for fresh in (False, True):
                if self.upstream is None:
                    fresh = True  # noqa: PLW2901 - nothing older to fall back from
                    self.upstream = http.client.HTTPConnection(*proxy.upstream, timeout=proxy.timeout_s)
                    self.upstream.connect()
                    self.upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    return self._ask(self.upstream, body)
                except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                    self.upstream.close()
                    self.upstream = None
                    if fresh:
                        raise
            raise AssertionError("unreachable")

        def _ask(self, upstream: http.client.HTTPConnection, body: bytes) -> _Answer:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "expect", "content-length"):
                    upstream.putheader(name, value)
            if body or "Content-Length" in self.headers or self.command in ("PUT", "POST"):
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            response = upstream.getresponse()
            return _Answer(response.status, response.reason, response.getheaders(), response.read())

        def _send(self, answer: _Answer, body_bytes: int | None) -> None:
            self.send_response_only(answer.status, answer.reason)
            length = None
            for name, value in answer.headers:
                if name.lower() == "content-length":
                    length = value
                elif name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            if self.command != "HEAD":
                length = str(len(answer.body))
            if answer.status not in (204, 304):
                self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body if body_bytes is None else answer.body[:body_bytes])
            self.wfile.flush()

        def _hang_up(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


def _error(fault: Fault) -> _Answer:
    body = b""
    headers = list(fault.headers.items())
    if fault.code:
        body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>made up</Message></Error>".encode()
        headers.append(("Content-Type", "application/xml"))
    return _Answer(fault.status or 500, http.client.responses.get(fault.status, "Fault"), headers, body)
