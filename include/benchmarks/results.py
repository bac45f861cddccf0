"""What a runner measured. Pure values; campaigns keep them as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from include.benchmarks.latencies import PERCENTILES, LatencyHistogram
from include.benchmarks.loads import LoadAccess

WHOLE = 100.0
"""Percent."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One second of a load; `p95_ms`: None where the runner reports no latencies over time."""

    second: int
    bytes_per_s: float
    p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """A look at the cluster while a step runs."""

    second: float
    osds_down: int
    unclean: int
    """Placement groups that are not active and clean."""
    degraded_percent: float
    """Copies and shards of objects that are missing."""
    misplaced_percent: float
    production_ms: float | None = None
    """How long a small read of production took."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Operations of one kind, without the ramp. `seconds` ends with the last stream."""

    access: LoadAccess
    bytes: int
    operations: int
    failed: int
    seconds: float
    first_done_s: float
    """When the first stream was done: from then on fewer streams share the target."""
    latencies: LatencyHistogram | None = None
    mean_ms: float | None = None
    series: tuple[SeriesPoint, ...] = ()

    @property
    def throughput(self) -> float:
        """Bytes per second of all streams together."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        """Operations per second of all streams together."""
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    def percentiles(self) -> dict[str, float]:
        """Latencies in milliseconds by `p50` to `p99.9`: those that at least one operation exceeds.

        The 95th percentile of five operations would be their maximum. Empty where the runner reports no latencies.
        """
        if self.latencies is None:
            return {}
        operations = self.latencies.operations
        enough = [percent for percent in PERCENTILES if round(operations * (100 - percent), 6) >= WHOLE]
        found = {f"p{percent:g}": self.latencies.percentile_ms(percent) for percent in enough}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunnerResult:
    """What a runner reports of a step: its exact command lines, and what limits the figures' meaning."""

    version: str
    commands: tuple[tuple[str, ...], ...]
    loads: tuple[MeasuredLoad, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Hosts without a result, each with the reason: the figures are of the others, and are not compared."""
