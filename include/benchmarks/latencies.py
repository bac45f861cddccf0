"""Histograms of latencies, in the buckets of fio: 64 to each power of two, so values are within 1 %."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
        """How many were counted."""
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
