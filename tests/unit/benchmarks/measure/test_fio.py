"""What runners report is read strictly: anything else is an error that names the step, never a figure."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.benchmarks.errors import RESULT_UNREADABLE, BenchmarkError
from include.benchmarks.measure import fio
from include.benchmarks.measure.loads import LoadAccess, LoadStep, RunnerKind, StreamLoad
from include.benchmarks.measure.programs import ProgramOutput
from tests.fakes.refused import refused

MIB = 1 << 20
WRITE = StreamLoad(LoadAccess.WRITE, "data", 2, 64 * MIB, MIB)
STEP = LoadStep("write", RunnerKind.FIO, (WRITE,), seconds=10)
IDLE = {"io_bytes": 0, "runtime": 0, "total_ios": 0, "clat_ns": {}}


def job(name="write-data", milliseconds=1000, error=0, **changes):
    bins = {"1040384": 60, "2064384": 3, "104333312": 1}
    busy = {"io_bytes": 64 * MIB, "runtime": milliseconds, "total_ios": 64, "clat_ns": {"bins": bins}} | changes
    return {"jobname": name, "error": error, "read": IDLE, "write": busy}


def document(*jobs):
    return json.dumps({"fio version": "fio-3.33", "jobs": list(jobs)})


def parse(text, logs=(), step=STEP):
    return fio.parse_fio(text, dict(logs), step)


def test_streams_of_a_load_are_added_up_until_the_last_one_ends():
    version, (load,), notes = parse(document(job(milliseconds=1000), job(milliseconds=2000)))
    assert (version, notes, load.bytes, load.operations, load.failed) == ("fio-3.33", (), 128 * MIB, 128, 0)
    assert (load.first_done_s, load.seconds, load.throughput) == (1, 2, 64 * MIB)
    percentiles = load.percentiles()
    assert list(percentiles) == ["p50", "p90", "p95", "p99"], "128 operations have no percentile of a thousand"
    assert (round(percentiles["p50"]), round(percentiles["p95"]), round(percentiles["p99"])) == (1, 2, 104)
    # messages before the document are skipped, and errors of streams counted
    _, (load,), notes = parse("fio: something\n" + document(job(), job(error=28)))
    assert (load.failed, notes) == (1, ("1 streams ended with error 28",))
    # mixed streams are measured in both directions
    step = LoadStep("mixed", RunnerKind.FIO, (StreamLoad(LoadAccess.MIXED, "data", 1, MIB, MIB),), seconds=1)
    _, loads, _ = parse(document(job("mixed-data")), step=step)
    assert [(load.access, load.operations) for load in loads] == [(LoadAccess.READ, 0), (LoadAccess.WRITE, 64)]


def test_logs_become_a_series_of_seconds():
    histogram = ", ".join(["0"] * 100 + ["5"] + ["0"] * 1755)
    logs = {
        "fio_bw.1.log": "1003, 1024, 1, 0, 0\n2001, 2048, 1, 0, 0\n2001, 9, 0, 0, 0\n",
        "fio_bw.2.log": "999, 1024, 1, 0, 0\n",
        "fio_clat_hist.1.log": f"1003, 1, 4096, {histogram}\n",
    }
    _, (load,), _ = parse(document(job(), job()), logs)
    assert [(point.second, point.bytes_per_s) for point in load.series] == [(1, 2 * MIB), (2, 2 * MIB)]
    assert (round(load.series[0].p95_ms * 1e6), load.series[1].p95_ms) == (100, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fio: killed",
        document(job(), job())[:-40],
        "[]",
        "{}",
        document(job()),
        document(job("read-data"), job()),
        document(job(io_bytes=-1), job()),
        document(job(runtime="soon"), job()),
        document(job(total_ios=None), job()),
        document(job(io_bytes=1e400), job()),
        document(job(clat_ns=[]), job()),
        '{"a":' * 100_000,
    ],
)
def test_a_damaged_result_of_fio_is_refused(text):
    with refused(RESULT_UNREADABLE, subject="write"):
        parse(text)


@given(st.text(alphabet="0123456789, \n-x", max_size=200))
def test_damaged_logs_are_refused_or_read_and_nothing_else(log):
    with suppress(BenchmarkError):
        parse(document(job(), job()), {"fio_bw.1.log": log, "fio_clat_hist.2.log": log})


def test_fio_never_creates_what_is_to_be_read_and_flushes_what_it_writes():
    read = StreamLoad(LoadAccess.READ, "data", 2, MIB, MIB, rate=32 * MIB)
    arguments = fio.fio_arguments(LoadStep("both", RunnerKind.FIO, (WRITE, read), 10), Path("/t"), direct=True)
    jobs = " ".join(arguments).split("--name=")
    assert "--end_fsync=1" in jobs[1]
    assert "--time_based" not in jobs[1]
    assert "--allow_file_create=0" in jobs[2]
    assert f"--rate={32 * MIB},{32 * MIB}" in jobs[2]


RADOS = {
    "total_time_run": 2.0,
    "total_writes_made": 100,
    "write_size": MIB,
    "average_latency": 0.02,
    "datas": [{"sec": 0, "cur_bw": 0}, {"sec": 1, "cur_bw": 50}],
}


def dd(stderr):
    return ProgramOutput(("dd",), 0, "", stderr)


def test_dd_copies_as_the_source_did_and_reports_bytes_and_seconds():
    assert fio.dd_arguments(WRITE, 1, Path("/t"))[:4] == ("if=/dev/zero", "of=/t/data.1.0", f"bs={MIB}", "count=64")
    read = StreamLoad(LoadAccess.READ, "data", 2, 64 * MIB, MIB)
    assert fio.dd_arguments(read, 0, Path("/t"))[:2] == ("if=/t/data.0.0", "of=/dev/null")
    text = "4+0 records in\n4+0 records out\n268435456 bytes (268 MB, 256 MiB) copied, 0.125 s, 2.1 GB/s\n"
    assert fio.parse_dd(dd(text), "write") == (268435456, 0.125)
    assert fio.parse_dd(dd("1 byte copied, 5e-05 s, 20 kB/s\n"), "write") == (1, 5e-05)


def test_streams_of_dd_are_measured_from_the_first_start_to_the_last_end():
    load = StreamLoad(LoadAccess.WRITE, "data", 3, MIB, MIB)
    step = LoadStep("step", RunnerKind.DD, (load,), 60)
    good = [fio.EndedStream(dd(f"1048576 bytes copied, {seconds} s"), at) for seconds, at in ((2, 102.0), (2, 103.0))]
    failed = fio.EndedStream(ProgramOutput(("dd",), 1, "", "No space left on device"), 100.5)
    found = fio.measured_streams(load, [*good, failed], step)
    assert (found.seconds, found.first_done_s, found.failed, found.bytes) == (3.0, 2.0, 1, 2 * MIB)


def test_damaged_results_of_dd_and_rados_bench_are_refused():
    for text in ("", "dd: writing: No space left on device", "many bytes copied, 1 s", "1 bytes copied, x s"):
        with refused(RESULT_UNREADABLE, subject="write"):
            fio.parse_dd(dd(text), "write")
    wrong = ({"total_time_run": 0}, {"total_writes_made": "x"}, {"datas": 3}, {"write_size": None})
    for text in (json.dumps(RADOS)[:-20], *(json.dumps(RADOS | change) for change in wrong)):
        with refused(RESULT_UNREADABLE, subject="write"):
            fio.parse_rados_bench(text, WRITE, "write")


def test_rados_bench_reports_objects_and_a_mean():
    load = fio.parse_rados_bench("hints = 1\n" + json.dumps(RADOS), WRITE, "write")
    assert (load.bytes, load.operations, load.throughput, load.mean_ms) == (100 * MIB, 100, 50 * MIB, 20)
    assert (load.percentiles(), [point.bytes_per_s for point in load.series]) == ({}, [50 * MIB])
    # only the seconds in which all loads ran count
    looks = [{"sec": second, "cur_bw": 50, "finished": 50 * second, "avg_lat": second / 100} for second in range(1, 11)]
    long = RADOS | {"total_time_run": 10.0, "total_writes_made": 500, "datas": looks}
    load = fio.parse_rados_bench(json.dumps(long), WRITE, "write", 4.5)
    assert (load.seconds, load.operations, load.bytes, load.mean_ms) == (4, 200, 200 * MIB, 40)
    assert [point.second for point in load.series] == [1, 2, 3, 4]
    whole = fio.parse_rados_bench(json.dumps(RADOS), WRITE, "write", 2.0)
    assert whole.operations == 100
