"""Watches the cluster while a step runs: renews timers, and ends the step when the cluster or production suffers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import Self

from include.benchmarks.cluster.client import ClusterClient
from include.benchmarks.errors import BenchmarkError
from include.benchmarks.programs import StopSignal
from include.benchmarks.results import ClusterSample

EVERY_S = 2.0
HOLD_S = 10.0
"""A reason ends a step when it lasts so long: groups are inactive for a moment when an OSD stops or starts."""
READS = 3
"""The latency of production is the median of so many reads."""
ANSWER_S = 30.0
PERCENT = 100


class ClusterWatch:
    """A thread beside the runner, as a context manager.

    Args:
        cluster: The cluster.
        stopped: How many OSDs the campaign has stopped itself.
        stop: Ends the runner.
        renew: Called at each look.
    """

    def __init__(
        self, cluster: ClusterClient, *, stopped: int, stop: StopSignal, renew: Callable[[], None] | None = None
    ) -> None:
        self.samples: list[ClusterSample] = []
        self.aborted: str | None = None
        """Why the step was ended."""
        self._cluster = cluster
        self._stopped = stopped
        self._stop = stop
        self._renew = renew
        self._over = threading.Event()
        self._reads: deque[float] = deque(maxlen=READS)
        self._since: float | None = None
        self._thread = threading.Thread(target=self._work, name="cluster-watch", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> tuple[str, ...]:
        """One look, which is kept; the reasons to end the step."""
        try:
            if self._renew is not None:
                self._renew()
            health = self._cluster.health(limit_s=ANSWER_S)
            production = self._cluster.production_ms()
        except BenchmarkError as error:
            return (str(error),)
        if production is not None:
            self._reads.append(production)
        second = time.monotonic() - self._began
        self.samples.append(ClusterSample(
            second, health.osds_down, health.unclean, health.degraded * PERCENT, health.misplaced * PERCENT, production,
        ))  # fmt: skip
        reasons = list(health.stopping)
        if health.osds_down > self._stopped:
            reasons.append(f"{health.osds_down} OSDs are down, and the campaign has stopped {self._stopped}")
        probe = self._cluster.settings.production
        if probe is not None and len(self._reads) == READS and median(self._reads) > probe.limit_ms:
            reasons.append(f"a read of production takes {median(self._reads):.0f} ms, limit {probe.limit_ms:.0f} ms")
        return tuple(reasons)

    def _work(self) -> None:
        while not self._over.is_set():
            reasons = self.look()
            now = time.monotonic()
            self._since = (now if self._since is None else self._since) if reasons else None
            if self._since is not None and now - self._since >= HOLD_S:
                self.aborted = "; ".join(reasons)
                self._stop.stop()
                return
            self._over.wait(EVERY_S)
