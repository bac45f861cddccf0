"""A mail server and a web service of one's own, which keep what they are sent."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tests.fakes.loopback import Heard, LoopbackServer, respond


class _Smtp(socketserver.StreamRequestHandler):
    """As much of RFC 5321 as a client needs that hands over one message."""

    def handle(self) -> None:
        self._say("220 ready")
        sender, to, server = "", list[str](), self.server
        while line := self.rfile.readline():
            verb, rest = line[:4].upper(), line.decode().strip()
            if verb == b"EHLO":
                self._say("250-here", "250 8BITMIME")
            elif verb == b"MAIL":
                sender, to = rest, []
                self._say("250 ok")
            elif verb == b"RCPT":
                to.append(rest)
                self._say(server.answer)  # type: ignore[attr-defined]
            elif verb == b"DATA":
                self._say("354 go on")
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line)
                server.mails.append((sender, tuple(to), b"".join(lines)))  # type: ignore[attr-defined]
                self._say("250 taken")
            elif verb == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    answer = "250 ok"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.mails: list[tuple[str, tuple[str, ...], bytes]] = []


class HookServer(LoopbackServer):
    METHODS = ("POST",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Heard] = []
        self.answers: list[int] = []

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        self.calls.append(request)
        status = self.answers.pop(0) if self.answers else 204
        respond(handler, status, headers={"Location": "http://127.0.0.1:1/elsewhere"} if status == 302 else None)


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
def hook_server() -> Iterator[HookServer]:
    with HookServer() as server:
        yield server
