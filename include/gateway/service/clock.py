"""The clocks of the gateway: deadlines count on a monotonic one, the wall clock is for people and for a reboot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """``boot`` names the time in which ``monotonic_ns`` can be compared between processes; ``""`` if unknown."""

    @property
    def boot(self) -> str: ...

    def monotonic_ns(self) -> int: ...

    def wall_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks; the monotonic one goes on while the machine sleeps, and from one process to the next."""

    def __init__(self) -> None:
        try:
            self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            self._boot = ""
        self._clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    @property
    def boot(self) -> str:
        return self._boot

    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(self._clock)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
