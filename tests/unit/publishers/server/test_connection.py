"""The output of a command on a node is read to its end, however slowly."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from include.publishers.server import connection
from include.publishers.server.connection import Running, _Output

LINES = 40


class SlowChannel:
    """A command that has ended; each read of what it wrote takes longer than a drain waits."""

    def __init__(self, *, eof_received: bool) -> None:
        self.eof_received = eof_received
        self.status_event = threading.Event()
        self.status_event.set()
        self._left = [b"%d\n" % number for number in range(LINES)]
        self._ended = threading.Event()

    def recv(self, size: int) -> bytes:
        if not self._left:
            if not self.eof_received:
                self._ended.wait(20)  # open in the background
            return b""
        time.sleep(0.02)
        return self._left.pop(0)

    def recv_ready(self) -> bool:
        return bool(self._left)

    def recv_exit_status(self) -> int:
        return 0

    def settimeout(self, _: float | None) -> None: ...

    def shutdown_write(self) -> None: ...

    def close(self) -> None:
        self._ended.set()


@pytest.mark.parametrize("eof_received", [True, False])
def test_all_of_it_is_there_when_a_command_has_ended(monkeypatch: pytest.MonkeyPatch, eof_received: bool) -> None:
    monkeypatch.setattr(connection, "_DRAIN_S", 0.005)
    channel = SlowChannel(eof_received=eof_received)
    where = cast("Any", SimpleNamespace(fqrn="a.example.org", name="node", host=Path("/")))
    running = Running(where, cast("Any", channel), limit_s=20, output=_Output(quiet=True, keep=LINES))
    try:
        assert running.finish().lines == tuple(str(number) for number in range(LINES))
    finally:
        running.close()
