"""A way to a port of this machine on which each answer takes longer: python late.py ADDRESS PORT SECONDS."""

from __future__ import annotations

import asyncio
import sys

LOOPBACK = "127.0.0.1"


async def serve(host: str, port: int, seconds: float) -> None:
    """Let connections to `host` through to the same port of loopback, until the process is ended."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            await asyncio.gather(passed(reader, to_writer, 0.0), passed(to_reader, writer, seconds))
        except OSError:
            pass  # one of the two has gone
        finally:
            to_writer.close()
            writer.close()

    server = await asyncio.start_server(connected, host, port, backlog=512)
    async with server:
        await server.serve_forever()


async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Pass on what is read, each piece so many seconds later, the end of it too."""
    clock, pieces = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def send() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due - clock.time()))
            if not piece:
                writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        while piece := await reader.read(1 << 16):
            pieces.put_nowait((clock.time() + seconds, piece))
        pieces.put_nowait((clock.time() + seconds, b""))
        await sending
    finally:
        sending.cancel()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
