"""HTTP between a client and a service, kept or given again."""

from __future__ import annotations

import http.client
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import urlsplit

HEADERS = {"authorization", "message-size", "content-type", "retry-after", "allow"}
BY_CHANCE = "x-nightshift-trace"


class Recorder:
    """Between a client and a service, or in the service's place; the ``exchanges`` in order.

    Args:
        upstream: The service's URL; without it, `replies` are given.
        replies: Exchanges that were recorded, whose replies are given in their order.
    """

    def __init__(self, upstream: str = "", replies: list[dict[str, Any]] | None = None) -> None:
        self.exchanges: list[dict[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                request = {"method": self.command, "path": self.path, "headers": _ours(self.headers), "body": body}
                reply = send(upstream, request) if upstream else (replies or [])[len(recorder.exchanges)]["reply"]
                recorder.exchanges.append({"request": request, "reply": reply})
                data = reply["body"].encode()
                self.send_response_only(reply["status"])
                for name, value in {**reply["headers"], "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def send(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The service's reply to a request."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request(request["method"], request["path"], request["body"].encode() or None, request["headers"])
        reply = connection.getresponse()
        body = re.sub(r'"pid":\d+', '"pid":0', reply.read().decode())
        return {"status": reply.status, "headers": _ours(reply.headers), "body": body}
    finally:
        connection.close()


def _ours(headers: Any) -> dict[str, str]:
    """The protocol's headers; those of the HTTP library may differ."""
    lower = {name.lower(): value for name, value in headers.items()}
    kept = {name: value for name, value in lower.items() if name in HEADERS or name.startswith("x-nightshift-")}
    return {name: "" if name == BY_CHANCE else value for name, value in sorted(kept.items())}
