"""Histograms of latencies are as exact as fio's."""

from __future__ import annotations

from hypothesis import given, strategies as st

from include.benchmarks.measure.loads import LAST_BUCKET, LatencyHistogram, bucket_of, middle_of


@given(st.integers(0, 1 << 33))
def test_the_middle_of_a_bucket_is_within_a_percent_of_what_is_counted_in_it(nanoseconds):
    bucket = bucket_of(nanoseconds)
    assert abs(middle_of(bucket) - nanoseconds) <= 0.01 * nanoseconds + 1
    assert bucket_of(int(middle_of(bucket))) == bucket


def test_percentiles_count_operations_from_the_fastest_on():
    latencies = LatencyHistogram.of(number * 1_000_000 for number in range(1, 1001))
    found = {percent: round(latencies.percentile_ms(percent)) for percent in (50, 95, 99)}
    assert all(abs(value - percent * 10) <= 10 for percent, value in found.items())
    assert abs(latencies.mean_ms() - 500.5) < 5
    assert bucket_of(10**15) == LAST_BUCKET
    empty = LatencyHistogram.of([])
    assert (empty.percentile_ms(50), empty.mean_ms(), empty.operations) == (None, None, 0)
    assert LatencyHistogram.merged([LatencyHistogram.of([10, 2000]), latencies]).operations == 1002


def test_a_percentile_is_the_latency_that_its_share_of_operations_do_not_exceed():
    latencies = LatencyHistogram.of([1_000_000] * 95 + [9_000_000] * 5)
    assert [round(latencies.percentile_ms(percent)) for percent in (50, 95, 95.1, 100)] == [1, 1, 9, 9]
