"""Asks machines and a Ceph cluster how they are, before, while and after a step runs. Nothing is changed there.

What does not answer, or may not be asked with our rights, is a note: a view that is missing fails no step.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from include.benchmarks.cluster.client import cluster_arguments
from include.benchmarks.errors import VIEW_INCOMPLETE, BenchmarkError
from include.benchmarks.hosts import BenchmarkHost
from include.benchmarks.programs import CEPH, SHELL, run_program
from include.benchmarks.servers.machine import LOOK, MachineLook, MachineUse
from include.benchmarks.servers.osds import (
    OsdCounts,
    RecoveryLook,
    latencies_between,
    parse_commits,
    parse_histograms,
)
from include.benchmarks.servers.view import MachineView, ServersView
from include.settings.storage_benchmark.blocks import CephAccess
from include.settings.storage_benchmark.cluster import ClusterBlock

THIS_MACHINE = "this machine"
CLUSTER = "Ceph"
LIMIT_S = 60.0
FIRST_LOOK_S = 30.0
"""How long a step waits for the first look of all."""
Looks = Callable[[Iterable[None]], Iterator[Iterable[str]]]
"""The looks of a machine: one at each moment."""


@dataclass(frozen=True, slots=True)
class WatchedServers:
    """What is asked. `clients`: hosts of a remote target; this machine is always asked."""

    every_s: float
    servers: tuple[BenchmarkHost, ...] = ()
    clients: tuple[BenchmarkHost, ...] = ()
    ceph: CephAccess | ClusterBlock | None = None

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
        self._counts: list[OsdCounts] = []
        self._commits: defaultdict[int, list[float]] = defaultdict(list)
        self._recovery: list[RecoveryLook] = []
        self._notes: set[str] = set()

    def machine(self, name: str, looks: Looks, *, server: bool) -> None:
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

    def cluster(self, access: CephAccess | ClusterBlock) -> None:
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
            self._counts.append(parse_histograms(counts, CLUSTER))

        def look() -> None:
            self._recovery.append(RecoveryLook.parse(ceph("status"), self._elapsed(), CLUSTER))
            for osd, commit_ms in parse_commits(ceph("osd", "perf"), CLUSTER).items():
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
                latencies=latencies_between(*self._counts[:2]) if len(self._counts) > 1 else (),
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


def _remote_looks(host: BenchmarkHost) -> Looks:
    return lambda moments: host.repeated(LOOK, moments)
