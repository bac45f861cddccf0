"""Streams of objects are measured from the end of the ramp on."""

from __future__ import annotations

from array import array

from include.benchmarks.measure.loads import LoadAccess
from include.benchmarks.measure.objects import NS, OperationLog, measured_objects


def test_nothing_of_the_ramp_is_counted() -> None:
    begin, halves = 1000 * NS, (1, 3, 4, 5, 6)  # the ramp of 2 s ends after the fourth
    log = OperationLog(
        ends=array("q", [begin + half * NS // 2 for half in halves]),
        durations=array("q", [90_000_000, 90_000_000, 5_000_000, 5_000_000, 5_000_000]),
        sizes=array("q", [10] * 5),
        failed_at=array("q", [begin + NS, begin + 2 * NS]),
        done=begin + 4 * NS,
    )
    load = measured_objects(LoadAccess.READ, [log], begin, ramp_s=2)
    assert (load.operations, load.bytes, load.failed) == (3, 30, 1)
    assert load.mean_ms is not None
    assert round(load.mean_ms, 1) == 5.0
    assert (load.seconds, load.throughput) == (2.0, 15.0)
    assert [(point.second, point.bytes_per_s) for point in load.series] == [(0, 20.0), (1, 10.0)]
