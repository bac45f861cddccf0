"""A link to a server whose every connection ends after some bytes of replies."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from typing import Self
from urllib.parse import urlsplit


class CuttingLink:
    """Forwards while it is entered; ``cuts``: connections that it ended, ``sent``: bytes of replies."""

    def __init__(self, url: str, cut_bytes: int) -> None:
        parts = urlsplit(url)
        self._upstream, self._cut_bytes = (parts.hostname, parts.port), cut_bytes
        self.cuts = self.sent = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"link": self}))
        self.url = parts._replace(netloc=f"127.0.0.1:{self._server.server_address[1]}").geturl()

    def forward(self, client: socket.socket) -> None:
        """Forward a connection until a side ends it, or until it has had its bytes, which all arrive."""
        left = self._cut_bytes
        with socket.create_connection(self._upstream) as server:
            requests = threading.Thread(target=_copy, args=(client, server), daemon=True)
            requests.start()
            with contextlib.suppress(OSError):
                while left and (data := server.recv(min(left, 1 << 16))):
                    client.sendall(data)
                    left -= len(data)
                    with self._lock:
                        self.sent += len(data)
                with self._lock:
                    self.cuts += not left
                client.shutdown(socket.SHUT_WR)
            requests.join()  # a request that stays unread would take what the client has not read with it

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


class _Handler(socketserver.BaseRequestHandler):
    link: CuttingLink

    def handle(self) -> None:
        self.link.forward(self.request)


def _copy(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(1 << 16):
            with contextlib.suppress(OSError):
                server.sendall(data)
        server.shutdown(socket.SHUT_WR)
