"""A link of limited speed in front of a server: bytes of both directions share what it lets through."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lab.servers.process import LOOPBACK

BURST_S = 0.03
"""Of time that a link may make up for."""
_PIECE = 16 << 10


class LimitedLink:
    """A port on this machine behind which a server is; `bytes_per_s` may be changed at any time."""

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.port = 0
        self._to = port
        self._free_at = 0.0

    async def serve(self, ready: threading.Event, end: asyncio.Event) -> None:
        """Let connections through until the end."""
        server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await end.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(LOOPBACK, self._to)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, to_writer), self._pass(to_reader, writer))
        for one in (writer, to_writer):
            one.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop()
        while piece := await reader.read(_PIECE):
            # each piece has its time on the link, after those before it. A link sends while this process waits for a
            # processor: what has queued up meanwhile is let through at once, as by the kernel's token buckets
            self._free_at = max(clock.time() - BURST_S, self._free_at) + len(piece) / self.bytes_per_s
            wait = self._free_at - clock.time()
            if wait > 0:
                await asyncio.sleep(wait)
            writer.write(piece)
            await writer.drain()
        writer.write_eof()


@contextmanager
def limited(port: int, bytes_per_s: float) -> Iterator[LimitedLink]:
    """A link to a port of this machine, in a thread of its own."""
    link, ready, end = LimitedLink(port, bytes_per_s), threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await link.serve(ready, end)

    # connections that are still open are cut at the end
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        ready.wait()
        yield link
    finally:
        loops[0].call_soon_threadsafe(end.set)
        thread.join()
