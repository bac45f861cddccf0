"""Processors, disks and network of a machine between two looks, and which of them limits. Pure.

Formats: proc(5) and Documentation/admin-guide/iostats.rst of the kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from include.benchmarks.campaign.machine import CpuTicks

LIMIT_PERCENT = 80
LIMIT_RULE = (
    f"a resource limits a machine if it was used for {LIMIT_PERCENT} % of the time of a step or more, of several that "
    "which was used most: all processors together, the busiest disk, or the busiest network interface in its busier "
    "direction, where the interface says how fast it is"
)
_FILE = "== "
LOOK = f"""for file in uptime loadavg diskstats net/dev; do echo "{_FILE}$file"; cat "/proc/$file"; done
echo "{_FILE}stat"; head -n 1 /proc/stat
echo "{_FILE}disks"; ls /sys/block
for name in /sys/class/net/*; do echo "{_FILE}speed ${{name##*/}}"; cat "$name/speed" 2>/dev/null; done
true"""
"""The script whose output is a look."""
_SECTOR, _MEGABIT = 512, 1_000_000 // 8
_READ_SECTORS, _WRITTEN_SECTORS, _BUSY_MS = 5, 9, 12
_SENT = 8
MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class MachineLook:
    """Counters of a machine's kernel, since it started, by its own clock."""

    uptime_s: float
    load: float
    ticks: CpuTicks
    disks: Mapping[str, tuple[int, int]]
    """Of whole disks: milliseconds in which they worked, and bytes."""
    networks: Mapping[str, tuple[int, int]]
    """Bytes received and sent."""
    speeds: Mapping[str, int]
    """Bytes per second in one direction, of interfaces that say so."""

    @classmethod
    def parse(cls, lines: Iterable[str]) -> MachineLook | None:
        """What `LOOK` wrote; None where it is not as expected."""
        files: defaultdict[str, list[str]] = defaultdict(list)
        name = ""
        for line in lines:
            if line.startswith(_FILE):
                name = line.removeprefix(_FILE)
            else:
                files[name].append(line)
        try:
            whole = frozenset(word for line in files["disks"] for word in line.split())
            return cls(
                uptime_s=float(files["uptime"][0].split()[0]),
                load=float(files["loadavg"][0].split()[0]),
                ticks=CpuTicks.parse("\n".join(files["stat"])),
                disks={words[2]: _disk(words) for words in map(str.split, files["diskstats"]) if words[2] in whole},
                networks=dict(_network(line) for line in files["net/dev"] if ":" in line),
                speeds={
                    name.removeprefix("speed "): int(text[0]) * _MEGABIT
                    for name, text in files.items()
                    if name.startswith("speed ") and text and text[0].isdigit()
                },
            )
        except (ValueError, IndexError):
            return None


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How a machine was used between two looks; its disk and its network are the busiest ones."""

    at_s: float
    """When it ended, from the begin of the step."""
    busy_percent: float
    """Of the time of all processors: used, or taken by other machines on the same hardware."""
    steal_percent: float
    load: float
    """Processes that ran or waited for the disk, as the mean of a minute."""
    disk: str | None = None
    disk_percent: float = 0.0
    disk_bytes_per_s: float = 0.0
    network: str | None = None
    network_bytes_per_s: float = 0.0
    network_percent: float | None = None
    """None: the interface does not say how fast it is."""

    @classmethod
    def between(cls, before: MachineLook, after: MachineLook, at_s: float) -> MachineUse | None:
        """What happened between two looks; None where no time passed, or the machine was started again."""
        seconds, ticks = after.uptime_s - before.uptime_s, after.ticks.total - before.ticks.total
        if seconds <= 0 or ticks <= 0:
            return None
        idle = after.ticks.idle - before.ticks.idle
        disks = {
            name: (100 * (busy - before.disks[name][0]) / MS_PER_S / seconds, (size - before.disks[name][1]) / seconds)
            for name, (busy, size) in after.disks.items()
            if name in before.disks
        }
        networks = {
            name: max(received - before.networks[name][0], sent - before.networks[name][1]) / seconds
            for name, (received, sent) in after.networks.items()
            if name in before.networks
        }
        shares = {name: 100 * rate / after.speeds[name] for name, rate in networks.items() if after.speeds.get(name)}
        disk = max(disks, key=lambda name: disks[name], default=None)
        network = max(networks, key=lambda name: (shares.get(name, 0.0), networks[name]), default=None)
        return cls(
            at_s=at_s,
            busy_percent=100 * (ticks - idle) / ticks,
            steal_percent=100 * (after.ticks.steal - before.ticks.steal) / ticks,
            load=after.load,
            disk=disk,
            disk_percent=min(100.0, disks[disk][0]) if disk else 0.0,
            disk_bytes_per_s=disks[disk][1] if disk else 0.0,
            network=network,
            network_bytes_per_s=networks[network] if network else 0.0,
            network_percent=shares.get(network) if network else None,
        )

    @classmethod
    def mean(cls, uses: Sequence[MachineUse]) -> MachineUse:
        """Of several rounds of a step; disk and network are those of the round in which they were busiest."""
        disk = max(uses, key=lambda use: use.disk_percent)
        network = max(uses, key=lambda use: (use.network_percent or 0.0, use.network_bytes_per_s))
        return cls(
            at_s=max(use.at_s for use in uses),
            busy_percent=fmean(use.busy_percent for use in uses),
            steal_percent=fmean(use.steal_percent for use in uses),
            load=fmean(use.load for use in uses),
            disk=disk.disk,
            disk_percent=disk.disk_percent,
            disk_bytes_per_s=disk.disk_bytes_per_s,
            network=network.network,
            network_bytes_per_s=network.network_bytes_per_s,
            network_percent=network.network_percent,
        )

    def limit(self) -> str | None:
        """What limits the machine, by `LIMIT_RULE`; None: nothing of it."""
        shares = {"processors": self.busy_percent, f"disk {self.disk}": self.disk_percent}
        shares[f"network {self.network}"] = self.network_percent or 0.0
        highest = max(shares, key=lambda name: shares[name])
        return highest if shares[highest] >= LIMIT_PERCENT else None


def _disk(words: Sequence[str]) -> tuple[int, int]:
    return int(words[_BUSY_MS]), (int(words[_READ_SECTORS]) + int(words[_WRITTEN_SECTORS])) * _SECTOR


def _network(line: str) -> tuple[str, tuple[int, int]]:
    name, _, numbers = line.partition(":")
    words = numbers.split()
    return name.strip(), (int(words[0]), int(words[_SENT]))
