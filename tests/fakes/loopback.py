"""The HTTP server that fakes of services share: a free loopback port, a thread for each connection, TLS if wanted."""

from __future__ import annotations

import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class Heard:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class LoopbackServer(ABC):
    """Serves while it is entered. A request of one of the ``METHODS`` is given to ``serve``; any other gets a 501."""

    METHODS: ClassVar[tuple[str, ...]]

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @abstractmethod
    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        """Answer a request through the connection that it came by."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def respond(
    handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole reply; underscores in the names of headers are hyphens."""
    handler.send_response(status)
    named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
    for name, value in {"Content-Length": str(len(body)), **named}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
    handler.wfile.flush()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up in the middle are what tests are about."""


def _handler(server: LoopbackServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body leave in one piece

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.serve(self, Heard(self.command, self.path, dict(self.headers), body))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    for method in server.METHODS:
        setattr(Handler, f"do_{method}", Handler.handle_any)
    return Handler
