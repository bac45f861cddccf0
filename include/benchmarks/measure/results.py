"""Results of a runner and histograms of latencies. Pure values; campaigns keep them as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from include.benchmarks.measure.loads import LoadAccess

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
NS_PER_MS = 1_000_000
_BITS = 6
_PER_POWER = 1 << _BITS
LAST_BUCKET = 29 * _PER_POWER - 1
"""Of fio; it holds everything above 17 s."""


def bucket_of(nanoseconds: int) -> int:
    """The number of the bucket that a latency is counted in."""
    shift = max(0, nanoseconds.bit_length() - 1 - _BITS)
    if shift == 0:
        return max(0, nanoseconds)
    return min(LAST_BUCKET, ((shift + 1) << _BITS) + ((nanoseconds >> shift) & (_PER_POWER - 1)))


def middle_of(bucket: int) -> float:
    """The latency in nanoseconds that represents a bucket."""
    if bucket < 2 * _PER_POWER:
        return float(bucket)
    shift = (bucket >> _BITS) - 1
    return float((1 << (shift + _BITS)) + ((bucket % _PER_POWER) + 0.5) * (1 << shift))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """How many operations took how long: counts by bucket."""

    counts: Mapping[int, int]

    @classmethod
    def of(cls, nanoseconds: Iterable[int]) -> LatencyHistogram:
        """The histogram of these latencies."""
        return cls(Counter(map(bucket_of, nanoseconds)))

    @classmethod
    def merged(cls, histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
        """All of them in one."""
        total: Counter[int] = Counter()
        for histogram in histograms:
            total.update(histogram.counts)
        return cls(total)

    @property
    def operations(self) -> int:
        """Return how many were counted."""
        return sum(self.counts.values())

    def percentile_ms(self, percent: float) -> float | None:
        """The latency in milliseconds that `percent` of the operations do not exceed; None without operations."""
        needed, seen = self.operations * percent / 100, 0
        for bucket, count in sorted(self.counts.items()):
            seen += count
            if seen >= needed:
                return middle_of(bucket) / NS_PER_MS
        return None

    def mean_ms(self) -> float | None:
        """The mean in milliseconds; None without operations."""
        total = self.operations
        summed = sum(middle_of(bucket) * count for bucket, count in self.counts.items())
        return summed / total / NS_PER_MS if total else None


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
