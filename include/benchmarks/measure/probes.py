"""Asks machines and a Ceph cluster how they are, before, while and after a step runs. Nothing is changed there.

What does not answer, or may not be asked with our rights, is a note: a view that is missing fails no step.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from include.benchmarks.errors import VIEW_INCOMPLETE, BenchmarkError
from include.benchmarks.measure import osds
from include.benchmarks.measure.ceph import cluster_arguments
from include.benchmarks.measure.programs import CEPH, SHELL, BenchmarkHost, run_program
from include.settings.benchmarks import CephAccess

_STEAL, _IDLE, _IOWAIT = 7, 3, 4
STAT = Path("/proc/stat")


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
        """Return what happened between two readings of the counters."""
        total = after.total - before.total
        if total <= 0:
            return cls(0.0, 0.0, load_before)
        steal, idle = after.steal - before.steal, after.idle - before.idle
        return cls(100 * steal / total, 100 * (total - idle) / total, load_before)


def load_now() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


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
        """Return what `LOOK` wrote; None where it is not as expected."""
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
        """Return what happened between two looks; None where no time passed, or the machine was started again."""
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
        """Return what limits the machine, by `LIMIT_RULE`; None: nothing of it."""
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


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine during a step."""

    name: str
    server: bool
    """False: it runs the load."""
    use: MachineUse
    """From the begin of the step to its end."""
    over_time: tuple[MachineUse, ...]


@dataclass(frozen=True, slots=True)
class ServersView:
    """What servers and clients reported of themselves during a step; `notes`: what is missing, and why."""

    machines: tuple[MachineView, ...] = ()
    latencies: tuple[osds.OsdLatency, ...] = ()
    commit_ms: Mapping[int, float] = field(default_factory=dict)
    """By OSD, as `osd perf` has it: the mean of all looks."""
    recovery: tuple[osds.RecoveryLook, ...] = ()
    notes: tuple[str, ...] = ()


THIS_MACHINE = "this machine"
CLUSTER = "Ceph"
LIMIT_S = 60.0
FIRST_LOOK_S = 30.0
"""How long a step waits for the first look of all."""
MachineLooks = Callable[[Iterable[None]], Iterator[Iterable[str]]]
"""The looks of a machine: one at each moment."""


@dataclass(frozen=True, slots=True)
class WatchedServers:
    """What is asked. `clients`: hosts of a remote target; this machine is always asked."""

    every_s: float
    servers: tuple[BenchmarkHost, ...] = ()
    clients: tuple[BenchmarkHost, ...] = ()
    ceph: CephAccess | None = None

    @contextmanager
    def during(self) -> Iterator[Callable[[], ServersView]]:
        """Ask while the block runs; what it gives ends that and returns what was seen."""
        watch = _Watch(self.every_s)
        watch.machine(THIS_MACHINE, _local_looks, server=False)
        for host in self.clients:
            watch.machine(host.name, _remote_looks(host), server=False)
        for host in self.servers:
            watch.machine(host.name, _remote_looks(host), server=True)
        if self.ceph is not None:
            watch.cluster(self.ceph)
        watch.wait_for_first()
        try:
            yield watch.end
        finally:
            watch.end()


class _Watch:
    """A thread for each machine and one for the cluster. Their findings are read after they have ended."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._threads: list[tuple[str, threading.Thread, threading.Event]] = []
        self._lock = threading.Lock()
        self._machines: list[MachineView] = []
        self._counts: list[osds.OsdCounts] = []
        self._commits: defaultdict[int, list[float]] = defaultdict(list)
        self._recovery: list[osds.RecoveryLook] = []
        self._notes: set[str] = set()

    def machine(self, name: str, looks: MachineLooks, *, server: bool) -> None:
        def work(first: threading.Event) -> None:
            found: list[tuple[float, MachineLook]] = []
            for lines in looks(self._moments()):
                look = MachineLook.parse(lines)
                if look is None:
                    self._note(f"{name}: /proc is not as expected there")
                    return
                found.append((self._elapsed(), look))
                first.set()
            self._seen(name, server, found)

        self._start(name, work)

    def cluster(self, access: CephAccess) -> None:
        def ceph(*words: str, some: bool = False) -> str:
            arguments = (*cluster_arguments(access), *words, "--format", "json")
            done = run_program(CEPH, arguments, subject=CLUSTER, limit_s=LIMIT_S)
            if done.code and not (some and done.stdout.strip()):
                last = done.stderr.strip().rpartition("\n")[2][:200]
                raise VIEW_INCOMPLETE(CLUSTER, f"`ceph {' '.join(words)}` ended with {done.code}: {last}")
            return done.stdout

        def count() -> None:
            # it fails for an OSD that is down, after the replies of the others
            counts = ceph("tell", "osd.*", "perf", "histogram", "dump", some=True)
            self._counts.append(osds.parse_histograms(counts, CLUSTER))

        def look() -> None:
            self._recovery.append(osds.RecoveryLook.parse(ceph("status"), self._elapsed(), CLUSTER))
            for osd, commit_ms in osds.parse_commits(ceph("osd", "perf"), CLUSTER).items():
                self._commits[osd].append(commit_ms)

        def work(first: threading.Event) -> None:
            self._tried(count)
            first.set()
            for _ in self._moments():
                self._tried(look)
            self._tried(count)

        self._start(CLUSTER, work)

    def wait_for_first(self) -> None:
        """Until all have looked once, or cannot: the load begins after that."""
        deadline = time.monotonic() + FIRST_LOOK_S
        for _, _, first in self._threads:
            first.wait(max(0.0, deadline - time.monotonic()))
        self._began = time.monotonic()

    def end(self) -> ServersView:
        """Look once more, and say what was seen."""
        self._ended.set()
        deadline = time.monotonic() + LIMIT_S
        for name, thread, _ in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._note(f"{name}: no answer within {LIMIT_S:.0f} s")
        with self._lock:
            return ServersView(
                machines=tuple(sorted(self._machines, key=lambda view: (view.server, view.name))),
                latencies=osds.latencies_between(*self._counts[:2]) if len(self._counts) > 1 else (),
                commit_ms={osd: fmean(values) for osd, values in sorted(self._commits.items())},
                recovery=tuple(self._recovery),
                notes=tuple(sorted(self._notes)),
            )

    def _start(self, name: str, work: Callable[[threading.Event], None]) -> None:
        first = threading.Event()

        def run() -> None:
            try:
                self._tried(lambda: work(first))
            finally:
                first.set()

        thread = threading.Thread(target=run, daemon=True, name=f"watch-{name}")
        self._threads.append((name, thread, first))
        thread.start()

    def _tried(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BenchmarkError as error:
            self._note(str(error))

    def _moments(self) -> Iterator[None]:
        """Now, every so often, and once more after the step."""
        while not self._ended.is_set():
            yield
            self._ended.wait(self._every_s)
        yield

    def _seen(self, name: str, server: bool, found: list[tuple[float, MachineLook]]) -> None:
        pairs = pairwise(found)
        over_time = [use for (_, before), (at_s, after) in pairs if (use := MachineUse.between(before, after, at_s))]
        whole = MachineUse.between(found[0][1], found[-1][1], found[-1][0])
        if whole is None:
            self._note(f"{name}: it was started again, or the step was too short to see anything")
            return
        with self._lock:
            self._machines.append(MachineView(name, server, whole, tuple(over_time)))

    def _note(self, text: str) -> None:
        with self._lock:
            self._notes.add(text)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def _local_looks(moments: Iterable[None]) -> Iterator[Iterable[str]]:
    for _ in moments:
        done = run_program(SHELL, ("-c", LOOK), subject=THIS_MACHINE, limit_s=LIMIT_S)
        yield done.require_success(THIS_MACHINE).stdout.splitlines()


def _remote_looks(host: BenchmarkHost) -> MachineLooks:
    return lambda moments: host.repeated(LOOK, moments)
