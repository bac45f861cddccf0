"""A small WebDAV server with digests over real HTTP: files in memory, and answers that a test gives in front.

Its replies have the form of XRootD 5.5.3.
"""

from __future__ import annotations

import base64
import re
import ssl
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import quote, unquote, urlsplit

from tests.fakes.loopback import Heard, LoopbackServer, respond

MODIFIED = "Sun, 01 Nov 2026 12:00:00 GMT"
Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class DavServer(LoopbackServer):
    """``digests``: the algorithms that it computes."""

    METHODS = ("GET", "HEAD", "PUT", "COPY", "DELETE", "PROPFIND")

    files: dict[str, bytes] = field(default_factory=dict)
    digests: tuple[str, ...] = ("adler32",)
    tls: ssl.SSLContext | None = None
    asked: list[Heard] = field(default_factory=list)
    scripted: list[tuple[str, str, Answer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.tls)

    @property
    def url(self) -> str:
        return f"{'davs' if self.tls else 'dav'}://{self.address}"

    @property
    def web_url(self) -> str:
        return self.url.replace("dav", "http", 1)

    def answer(self, method: str, path: str, status: int, body: bytes = b"", **headers: str) -> None:
        """Every request of the method whose path fits the expression gets this reply."""
        self.act(method, path, lambda handler: respond(handler, status, body, headers))

    def act(self, method: str, path: str, act: Answer) -> None:
        """The same with anything that can be done with a connection."""
        self.scripted.append((method, path, act))

    def count(self, method: str) -> int:
        return sum(asked.method == method for asked in self.asked)

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        self.asked.append(request)
        path = unquote(urlsplit(handler.path).path)
        for method, expression, act in self.scripted:
            if method == handler.command and re.search(expression, handler.path):
                return act(handler)
        folder = path.rstrip("/") + "/"
        if handler.command == "PROPFIND" and any(name.startswith(folder) for name in self.files):
            return respond(handler, 207, self._listing(folder), {"Content-Type": "text/xml"})
        if handler.command == "PUT":
            self.files[path] = request.body
            return respond(handler, 201, b"")
        if handler.command == "COPY":
            self.files[path] = self.files[unquote(urlsplit(handler.headers["Source"]).path)]
            return respond(handler, 202, b"Perf Marker\nEnd\nsuccess: Created\n")
        data = self.files.get(path)
        if data is None:
            return respond(handler, 404, b"")
        if handler.command == "DELETE":
            del self.files[path]
            return respond(handler, 200, b"")
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if part and handler.command == "GET":
            return respond(handler, 206, data[int(part[1]) : int(part[2]) + 1])
        return respond(handler, 200, data, self._digest(data, handler.headers.get("Want-Digest")))

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
