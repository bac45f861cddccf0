"""Remote hosts without a network: shares of streams, clocks, and results that are put together."""

from __future__ import annotations

from hypothesis import given, strategies as st

from include.benchmarks.measure.loads import (
    LatencyHistogram,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerKind,
    SeriesPoint,
    StreamLoad,
)
from include.benchmarks.measure.programs import HostClock
from include.benchmarks.measure.remote import HostPart, merged_loads, read_output, share_of

READ, WRITE = LoadAccess.READ, LoadAccess.WRITE


def step(*streams: int) -> LoadStep:
    loads = tuple(StreamLoad(WRITE, f"data-{number}", count, 4096, 4096) for number, count in enumerate(streams))
    return LoadStep("step", RunnerKind.REMOTE, loads, 1)


def part(late_s: float, **loads: MeasuredLoad) -> HostPart:
    return HostPart("fio-3", ("fio",), {(name, load.access): load for name, load in loads.items()}, (), late_s)


def measured(access: LoadAccess, size: int, seconds: float, *, second: int = 0, failed: int = 0) -> MeasuredLoad:
    histogram = LatencyHistogram.of([1_000_000] * size)
    return MeasuredLoad(
        access, size, size, failed, seconds, seconds / 2, histogram, histogram.mean_ms(), (SeriesPoint(second, size),)
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=3), st.integers(1, 13))
def test_every_stream_is_on_one_host(streams: list[int], hosts: int) -> None:
    shares = [share_of(step(*streams), index, hosts) for index in range(hosts)]
    found = [load for share in shares if share for load in share.loads]
    assert all(load.streams for load in found)
    for number, count in enumerate(streams):
        assert sum(load.streams for load in found if load.dataset == f"data-{number}") == count


def test_hosts_have_nearly_as_many_streams_and_the_clock_is_taken_from_the_fastest_round_trip() -> None:
    shares = [share_of(step(7), index, 3) for index in range(3)]
    assert [share.loads[0].streams for share in shares if share] == [3, 2, 2]
    clock = HostClock.nearest([(10.0, 15.4, 10.8), (20.0, 25.05, 20.1), (30.0, 35.9, 31.0)])
    assert abs(clock.offset_s - 5.0) < 1e-9
    assert abs(clock.error_s - 0.05) < 1e-9


def test_results_of_hosts_are_one_that_ends_with_the_last_stream() -> None:
    parts = [part(0.0, data=measured(WRITE, 10, 4.0)), part(1.0, data=measured(WRITE, 30, 2.0, failed=2))]
    (load,) = merged_loads(parts)
    assert (load.bytes, load.operations, load.failed) == (40, 40, 2)
    assert (load.seconds, load.first_done_s) == (4.0, 2.0)
    assert load.throughput == 10
    assert load.latencies is not None
    assert load.latencies.operations == 40
    assert {point.second: point.bytes_per_s for point in load.series} == {0: 10, 1: 30}
    apart = [part(0, a=measured(WRITE, 10, 1), b=measured(WRITE, 20, 1)), part(0, b=measured(WRITE, 1, 1))]
    assert [load.bytes for load in merged_loads(apart)] == [10, 21]


def test_the_output_of_a_host_has_its_start_and_files() -> None:
    lines = ["banner", "began 12.5", "fio: warning", "== fio.json", "{", "}", "", "== fio_bw.1.log", "1, 2, 0, 0"]
    began, files = read_output(lines)
    assert began == 12.5
    assert files == {"fio.json": "{\n}\n", "fio_bw.1.log": "1, 2, 0, 0"}
    assert read_output(["began 1.2.3", "sh: fio: not found"]) == (None, {}), "it ended early"
