"""A small WebDAV server with digests over real HTTP: files in memory, and answers that a test gives in front.

Its replies have the form of XRootD 5.5.3.
"""

from __future__ import annotations

import base64
import re
import ssl
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

MODIFIED = "Sun, 01 Nov 2026 12:00:00 GMT"
Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class DavAsked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class DavServer:
    """Serves on a free loopback port while it is entered. ``digests``: the algorithms that it computes."""

    files: dict[str, bytes] = field(default_factory=dict)
    digests: tuple[str, ...] = ("adler32",)
    tls: ssl.SSLContext | None = None
    asked: list[DavAsked] = field(default_factory=list)
    scripted: list[tuple[str, str, Answer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        if self.tls:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"{'davs' if self.tls else 'dav'}://127.0.0.1:{self._server.server_port}"

    @property
    def web_url(self) -> str:
        return self.url.replace("dav", "http", 1)

    def answer(self, method: str, path: str, status: int, body: bytes = b"", **headers: str) -> None:
        """Every request of the method whose path fits the expression gets this reply."""
        named = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.act(method, path, lambda handler: _reply(handler, status, body, named))

    def act(self, method: str, path: str, act: Answer) -> None:
        """The same with anything that can be done with a connection."""
        self.scripted.append((method, path, act))

    def count(self, method: str) -> int:
        return sum(asked.method == method for asked in self.asked)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.asked.append(DavAsked(handler.command, handler.path, dict(handler.headers)))
        path = unquote(urlsplit(handler.path).path)
        for method, expression, act in self.scripted:
            if method == handler.command and re.search(expression, handler.path):
                return act(handler)
        folder = path.rstrip("/") + "/"
        if handler.command == "PROPFIND" and any(name.startswith(folder) for name in self.files):
            return _reply(handler, 207, self._listing(folder), {"Content-Type": "text/xml"})
        data = self.files.get(path)
        if data is None:
            return _reply(handler, 404, b"")
        if handler.command == "DELETE":
            del self.files[path]
            return _reply(handler, 200, b"")
        return _reply(handler, 200, data, self._digest(data, handler.headers.get("Want-Digest")))

    def _digest(self, data: bytes, wanted: str | None) -> dict[str, str]:
        if wanted not in self.digests:
            return {}
        value = zlib.adler32(data)
        # what is sent as crc32c is none; XRootD writes it in Base64
        text = f"{value:x}" if wanted == "adler32" else base64.b64encode(value.to_bytes(4, "big")).decode()
        return {"Digest": f"{wanted}={text}"}

    def _listing(self, folder: str) -> bytes:
        below = {name.removeprefix(folder): data for name, data in self.files.items() if name.startswith(folder)}
        folders = {name.partition("/")[0] for name in below if "/" in name}
        entries = [listed(folder, None), *(listed(f"{folder}{name}/", None) for name in sorted(folders))]
        entries += [listed(folder + name, len(data)) for name, data in sorted(below.items()) if "/" not in name]
        return multistatus(*entries)


def multistatus(*entries: str) -> bytes:
    """A reply to PROPFIND."""
    return f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{"".join(entries)}</D:multistatus>'.encode()


def listed(path: str, size: int | None, modified: str = MODIFIED) -> str:
    """An entry of it; without size, a folder."""
    kind = "<D:collection/>" if size is None else ""
    length = "" if size is None else f"<D:getcontentlength>{size}</D:getcontentlength>"
    href = quote(path, errors="surrogateescape")
    return (
        f"<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype>{kind}</D:resourcetype>{length}"
        f"<D:getlastmodified>{modified}</D:getlastmodified></D:prop></D:propstat></D:response>"
    )


def _reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
    handler.wfile.flush()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up in the middle are what tests are about."""


def _handler(server: DavServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.serve(self)

        do_GET = do_HEAD = do_DELETE = do_PROPFIND = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    return Handler
