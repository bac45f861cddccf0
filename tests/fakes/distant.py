"""A web server that serves one file as a script of faults has it, and counts what it sends."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BOUNDARY = "123456"
CUT_BYTES, STALL_BYTES = 5000, 100_000
MIDDLE = 3
"""So many requests are served before something changes in the middle."""


class DistantFault(Enum):
    """Faults of the server."""

    NONE = "none"
    HANGS_ONCE = "hangs once"
    HANGS = "hangs after the first byte was asked for"
    CUTS = "ends each reply after 5,000 bytes"
    CUTS_AT_ONCE = "ends each reply after its head"
    REDIRECTS = "redirects to another path"
    LOOPS = "redirects in a circle"
    HTML = "answers with a page"
    IGNORES_RANGES = "sends the whole file"
    ONE_RANGE = "sends the whole file where several ranges are asked for"
    MERGES = "sends all from the first range to the last as one"
    REORDERS = "sends the parts from the last to the first"
    FIRST_ONLY = "sends the first range only"
    LEAVES_OUT = "leaves the last part out"
    CHANGES = "has another file after some requests"
    OTHER_TOTAL = "says that the file is larger after some requests"
    LONG_LENGTH = "announces more bytes than it sends"
    TOO_MUCH = "sends more than was asked for"
    NO_PLACE = "does not say where a part belongs"
    ENDLESS_LINE = "sends a line without an end"
    BUSY = "is busy twice"
    GONE = "has no such file after some requests"
    STALLS = "sends 100,000 bytes and then nothing more"
    ENCODES = "compresses what it sends"
    REFUSES = "refuses the credential after some requests"


@dataclass
class DistantServer:
    """The file and the fault; `sent`: bytes of bodies, `asked`: requests that were not about the first byte."""

    content: bytes
    fault: DistantFault = DistantFault.NONE
    digest: bool = True
    sent: int = 0
    asked: int = 0
    connections: int = 0
    ranges: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @contextmanager
    def serving(self) -> Iterator[DistantServer]:
        """Serve until the end of the block."""
        server = _QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"script": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}/store/data%20set/f%C3%BCr%2Bflux.root"
        try:
            yield self
        finally:
            self.stop.set()
            server.shutdown()
            server.server_close()


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Nothing: readers leave in the middle."""


class _Handler(BaseHTTPRequestHandler):
    script: DistantServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.script.lock:
            self.script.connections += 1

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        script, fault = self.script, self.script.fault
        parts = self.headers["Range"].removeprefix("bytes=").split(",")
        ranges = [(int(first), int(last)) for first, _, last in (part.partition("-") for part in parts)]
        opening = ranges == [(0, 0)]
        with script.lock:
            script.asked += not opening
            script.ranges.append(len(ranges))
            turn = script.asked
        late = turn > MIDDLE
        content, tag = script.content, '"one"'
        if fault is DistantFault.CHANGES and late:
            content, tag = bytes(len(content)), '"two"'
        if fault is DistantFault.REDIRECTS and self.path.startswith("/store"):
            return self._redirect("/moved" + self.path)
        if fault is DistantFault.LOOPS:
            return self._redirect("/b" if self.path == "/a" else "/a")
        if fault is DistantFault.HTML:
            return self._send(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
        if fault is DistantFault.BUSY and not opening and turn <= 2:
            return self._send(503, b"", {"Retry-After": "0"})
        if fault is DistantFault.GONE and late:
            return self._send(404, b"no", {})
        if fault is DistantFault.REFUSES and late:
            return self._send(401, b"no", {})
        if not opening and (fault is DistantFault.HANGS or (fault is DistantFault.HANGS_ONCE and turn == 1)):
            script.stop.wait()
            return None
        usual = {"ETag": tag, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        if script.digest:
            usual["Digest"] = f"adler32={zlib.adler32(content):08x}"
        total = len(content) + (100 if fault is DistantFault.OTHER_TOTAL and late else 0)
        changed = self.headers.get("If-Range", tag) != tag
        several = len(ranges) > 1
        if not content:
            return self._send(416, b"", usual | {"Content-Range": "bytes */0"})
        if changed or fault is DistantFault.IGNORES_RANGES or (several and fault is DistantFault.ONE_RANGE):
            return self._send(200, content, usual)
        if several and fault is DistantFault.MERGES:
            ranges = [(ranges[0][0], max(last for _, last in ranges))]
        if several and fault is DistantFault.FIRST_ONLY:
            ranges = ranges[:1]
        if several and fault is DistantFault.LEAVES_OUT:
            ranges = ranges[:-1]
        if fault is DistantFault.REORDERS:
            ranges.reverse()
        if len(ranges) == 1:
            (first, last), more = ranges[0], b""
            if fault is DistantFault.TOO_MUCH and not opening:
                more = b"x" * 100
            usual["Content-Range"] = f"bytes {first}-{last}/{total}"
            return self._send(206, content[first : last + 1] + more, usual)
        body = b""
        for number, (first, last) in enumerate(ranges):
            place = f"Content-Range: bytes {first}-{last}/{total}\r\n"
            if fault is DistantFault.NO_PLACE and number == 1:
                place = ""
            body += f"\r\n--{BOUNDARY}\r\nContent-Type: application/octet-stream\r\n{place}\r\n".encode()
            body += content[first : last + 1]
        if fault is DistantFault.ENDLESS_LINE:
            body = b"x" * len(body)
        if fault is DistantFault.TOO_MUCH:
            body = body + body
        usual["Content-Type"] = f'multipart/byteranges; boundary="{BOUNDARY}"'
        return self._send(206, body + f"\r\n--{BOUNDARY}--\r\n".encode(), usual)

    def _redirect(self, target: str) -> None:
        self._send(302, b"", {"Location": target})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        fault, data = self.script.fault, status in (200, 206) and len(body) > 1
        length = len(body) + (100 if fault is DistantFault.LONG_LENGTH and data else 0)
        if fault is DistantFault.ENCODES:
            headers = headers | {"Content-Encoding": "gzip"}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(name, value)
        self.end_headers()
        cuts = {DistantFault.CUTS: CUT_BYTES, DistantFault.STALLS: STALL_BYTES, DistantFault.CUTS_AT_ONCE: 0}
        cut = cuts.get(fault) if data else None
        if length != len(body) or (cut is not None and cut < len(body)):
            self.close_connection = True
            body = body[:cut]
        with self.script.lock:
            self.script.sent += len(body)
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the reader has left
        if fault is DistantFault.STALLS and self.close_connection:
            self.script.stop.wait()
