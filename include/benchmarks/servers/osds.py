"""What OSDs and their cluster report: latencies by OSD between two looks, and recovery. Pure.

An OSD counts its operations by latency and size (`perf histogram dump`). The axis is named for microseconds and has
nanoseconds. Buckets double: a percentile is right within a factor of two.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from include.benchmarks.errors import RESULT_UNREADABLE
from include.benchmarks.latencies import NS_PER_MS
from include.benchmarks.loads import LoadAccess

HISTOGRAMS = {
    LoadAccess.READ: "op_r_latency_out_bytes_histogram",
    LoadAccess.WRITE: "op_w_latency_in_bytes_histogram",
}
_OSD = re.compile(r"^osd\.(\d{1,6}): ?", re.MULTILINE)
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
Bucket = tuple[int, int]
"""The shortest and the longest latency in nanoseconds."""


@dataclass(frozen=True, slots=True)
class OsdLatency:
    """How many operations of clients took how long in one OSD: the lower and upper end of a bucket, and its count."""

    osd: int
    access: LoadAccess
    buckets: tuple[tuple[int, int, int], ...]

    @property
    def operations(self) -> int:
        """How many there were."""
        return sum(count for *_, count in self.buckets)

    def mean_ms(self) -> float | None:
        """The mean in milliseconds, as if each took as long as the middle of its bucket; None without operations."""
        summed = sum((lower + upper) / 2 * count for lower, upper, count in self.buckets)
        return summed / self.operations / NS_PER_MS if self.operations else None

    def percentile_ms(self, percent: float) -> float | None:
        """The latency in milliseconds that `percent` of the operations do not exceed; None without operations."""
        needed, seen = self.operations * percent / 100, 0
        for lower, upper, count in self.buckets:
            if seen + count >= needed and count:
                return (lower + (upper - lower) * (needed - seen) / count) / NS_PER_MS
            seen += count
        return None


OsdCounts = Mapping[tuple[int, LoadAccess], Mapping[Bucket, int]]
"""What the OSDs had counted at a look."""


def parse_histograms(text: str, subject: str) -> OsdCounts:
    """The reply to `ceph tell osd.* perf histogram dump`: a document after the name of each OSD.

    Raises:
        BenchmarkError: RESULT_UNREADABLE about the subject.
    """
    found: dict[tuple[int, LoadAccess], Mapping[Bucket, int]] = {}
    places = list(_OSD.finditer(text))
    try:
        for place in places:
            # an OSD that is down has an error in place of a document
            if not text[place.end() :].lstrip().startswith("{"):
                continue
            document, _ = json.JSONDecoder().raw_decode(text[place.end() :].lstrip())
            for access, name in HISTOGRAMS.items():
                found[int(place[1]), access] = _counts(document["osd"][name])
    except _UNREADABLE as error:
        raise RESULT_UNREADABLE(subject, f"`perf histogram dump` cannot be read ({type(error).__name__})") from None
    if not found:
        # `ceph tell osd.*` leaves out the name where there is one OSD only
        raise RESULT_UNREADABLE(subject, "no OSD that is named replied to `perf histogram dump`; it takes two at least")
    return found


def latencies_between(before: OsdCounts, after: OsdCounts) -> tuple[OsdLatency, ...]:
    """The operations between two looks; of an OSD that was started meanwhile those since then."""
    return tuple(
        OsdLatency(osd, access, tuple(_grown(before.get((osd, access), {}), counts)))
        for (osd, access), counts in sorted(after.items(), key=lambda item: (item[0][0], item[0][1].value))
    )


def merged_latencies(latencies: Iterable[OsdLatency]) -> tuple[OsdLatency, ...]:
    """Those of several rounds together, by OSD and direction."""
    totals: dict[tuple[int, LoadAccess], Counter[Bucket]] = {}
    for latency in latencies:
        total = totals.setdefault((latency.osd, latency.access), Counter())
        for lower, upper, count in latency.buckets:
            total[lower, upper] += count
    return latencies_between({}, totals)


def parse_commits(text: str, subject: str) -> Mapping[int, float]:
    """The reply to `ceph osd perf --format json`: how long each OSD takes to commit, in ms, as it reports itself.

    Raises:
        BenchmarkError: RESULT_UNREADABLE about the subject.
    """
    try:
        document = json.loads(text)
        infos = document.get("osdstats", document)["osd_perf_infos"]
        return {int(info["id"]): float(info["perf_stats"]["commit_latency_ms"]) for info in infos}
    except _UNREADABLE as error:
        raise RESULT_UNREADABLE(subject, f"`osd perf` cannot be read ({type(error).__name__})") from None


@dataclass(frozen=True, slots=True)
class RecoveryLook:
    """How much of a cluster was not where it should be, and how fast that was mended."""

    at_s: float
    degraded: int
    """Copies and chunks of objects that were missing."""
    misplaced: int
    """Copies and chunks on another OSD than they belong to."""
    bytes_per_s: float

    @classmethod
    def parse(cls, text: str, at_s: float, subject: str) -> RecoveryLook:
        """The reply to `ceph status --format json`. Raises BenchmarkError (RESULT_UNREADABLE) about the subject."""
        try:
            groups = json.loads(text)["pgmap"]
            # what is zero is left out
            degraded, misplaced = int(groups.get("degraded_objects", 0)), int(groups.get("misplaced_objects", 0))
            return cls(at_s, degraded, misplaced, float(groups.get("recovering_bytes_per_sec", 0)))
        except _UNREADABLE as error:
            raise RESULT_UNREADABLE(subject, f"`ceph status` cannot be read ({type(error).__name__})") from None


def _counts(histogram: dict[str, Any]) -> Mapping[Bucket, int]:
    axis = next(axis for axis in histogram["axes"] if axis["name"].startswith("Latency"))
    found: Counter[Bucket] = Counter()
    for bounds, row in zip(axis["ranges"], histogram["values"], strict=True):
        lower = max(0, int(bounds.get("min", 0)))
        upper = max(0, int(bounds.get("max", 2 * lower - 1)) + 1)
        found[lower, upper] += sum(map(int, row))
    return found


def _grown(before: Mapping[Bucket, int], after: Mapping[Bucket, int]) -> Iterator[tuple[int, int, int]]:
    restarted = any(after.get(bucket, 0) < count for bucket, count in before.items())
    for bucket, count in sorted(after.items()):
        grown = count if restarted else count - before.get(bucket, 0)
        if grown:
            yield (*bucket, grown)
