"""How busy this machine was with other things while it measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
_STEAL, _IDLE, _IOWAIT = 7, 3, 4


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Counters of the kernel, since the machine started."""

    total: int
    steal: int
    idle: int

    @classmethod
    def parse(cls, text: str) -> CpuTicks:
        """The first line of /proc/stat; zeros where it is not as expected."""
        words = text.partition("\n")[0].split()
        if not words or words[0] != "cpu" or not all(word.isdigit() for word in words[1:]) or len(words) <= _STEAL + 1:
            return cls(0, 0, 0)
        numbers = list(map(int, words[1 : _STEAL + 2]))
        return cls(sum(numbers), numbers[_STEAL], numbers[_IDLE] + numbers[_IOWAIT])

    @classmethod
    def now(cls) -> CpuTicks:
        """As they are now."""
        try:
            return cls.parse(STAT.read_text())
        except OSError:
            return cls(0, 0, 0)


@dataclass(frozen=True, slots=True)
class MachineNoise:
    """During a step, on the machine of the clients."""

    steal_percent: float
    """Of the processor time: taken by other machines on the same hardware."""
    busy_percent: float
    """Of the processor time: used, by the runner or by others."""
    load_before: float
    """Processes that ran or waited for the disk, just before the step began."""

    @classmethod
    def between(cls, before: CpuTicks, after: CpuTicks, load_before: float) -> MachineNoise:
        """What happened between two readings of the counters."""
        total = after.total - before.total
        if total <= 0:
            return cls(0.0, 0.0, load_before)
        steal, idle = after.steal - before.steal, after.idle - before.idle
        return cls(100 * steal / total, 100 * (total - idle) / total, load_before)


def load_now() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]
