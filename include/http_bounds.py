"""HTTP as our servers read it, with bounds in bytes, in time and in connections."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 32 << 10
_TEXT = b"request header fields too large\n"
_REPLY = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_TEXT), _TEXT)
)


class ConnectionLimits:
    """Limits that all connections of a server share: at most ``connections``, each with ``head_s`` for a head.

    ``on_limit`` is called with the limit that closed one.
    """

    def __init__(self, head_s: float, connections: int, on_limit: Callable[[str], None]) -> None:
        self.head_s = head_s
        # a quarter of the descriptors is left to state, stores and logs
        self._most = min(connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)
        self.on_limit = on_limit
        self._open: dict[BoundedHttp, None] = {}

    def opened(self, connection: BoundedHttp) -> None:
        """Above the most, the oldest connection without a request is closed; one that never sent any comes first."""
        self._open[connection] = None
        if len(self._open) <= self._most:
            return
        silent = next((other for other in self._open if other.cycle is None), None)
        idle = silent or next((other for other in self._open if other.cycle.response_complete), connection)
        self._open.pop(idle)
        self.on_limit("connections")
        idle.transport.close()

    def closed(self, connection: BoundedHttp) -> None:
        self._open.pop(connection, None)


class BoundedHttp(HttpToolsProtocol):
    """A connection. Bytes count against the limit from a request's first one until its head is complete.

    The time for a head begins with the connection, and after that with a request's first byte.
    """

    def __init__(self, *args: Any, bounds: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._head_bytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()
        self._bounds.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._bounds.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            self._begin_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(_REPLY)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._end_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def _begin_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._bounds.head_s, self._too_slow)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._bounds.on_limit("head time")
        self.transport.close()
