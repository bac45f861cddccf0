"""Runners that call programs: fio, dd and `rados bench`; one job for each load, one thread for each stream."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from include.benchmarks.errors import RESULT_UNREADABLE
from include.benchmarks.measure.ceph import NamespaceArea
from include.benchmarks.measure.loads import (
    DataPattern,
    LatencyHistogram,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerResult,
    SeriesPoint,
    StreamLoad,
    bucket_of,
)
from include.benchmarks.measure.objects import complete_files, drop_caches
from include.benchmarks.measure.programs import DD, FIO, RADOS, ProgramOutput, run_program
from include.benchmarks.measure.targets import FolderArea, Runner, RunnerAbilities, longest_s

MS_PER_S = 1000
MIB = 1 << 20
NO_PERCENTILES = "rados bench reports mean latencies only"
ONE_LETTER = "rados bench writes one letter again and again: a pool that compresses stores next to nothing"


def rados_bench_arguments(load: StreamLoad, area: NamespaceArea, seconds: int) -> tuple[str, ...]:
    """The command line of a load: as many operations in flight as it has streams."""
    mode = "write" if load.access is LoadAccess.WRITE else "seq"
    sizes = ("-b", str(load.block_bytes), "-O", str(load.file_bytes)) if mode == "write" else ()
    limit = ("--max-objects", str(load.streams * load.files), "--no-cleanup") if mode == "write" else ()
    bench = ("bench", str(seconds), mode, "-t", str(load.streams), "--run-name", load.dataset)
    return (*area.arguments(load.dataset), *bench, *sizes, *limit, "--format", "json")


def parse_rados_bench(text: str, load: StreamLoad, subject: str, until_s: float = math.inf) -> MeasuredLoad:
    """Read the result of `rados bench`.

    Args:
        text: Its output.
        load: The load that it ran.
        subject: The step, for errors.
        until_s: Only the seconds before are counted: other loads of the step had ended then.

    Raises:
        BenchmarkError: RESULT_UNREADABLE.
    """
    try:
        # lines about hints come before the document
        document: dict[str, Any] = json.loads(text[text.index("{") :])
        seconds = float(document["total_time_run"])
        made = int(document.get("total_writes_made", document.get("total_reads_made", -1)))
        size = int(document.get("write_size", document.get("read_size", 0)))
        if seconds <= 0 or made < 0 or size <= 0:
            raise ValueError("its totals are not positive")
        looks = [point for point in document.get("datas", ()) if 0 < int(point["sec"]) <= until_s]
        points = tuple(SeriesPoint(int(point["sec"]), float(point["cur_bw"]) * MIB) for point in looks)
        mean = float(document["average_latency"]) * MS_PER_S
        if looks and seconds > until_s:
            # `finished` and `avg_lat` are those of all seconds up to the look
            last = looks[-1]
            seconds, made, mean = float(last["sec"]), int(last["finished"]), float(last["avg_lat"]) * MS_PER_S
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RESULT_UNREADABLE(subject, f"the result of rados bench cannot be read: {_first_line(error)}") from None
    return MeasuredLoad(load.access, made * size, made, 0, seconds, seconds, None, mean, points)


class RadosRunner(Runner[NamespaceArea]):
    """Whole objects, written and read in sequence; mean latencies."""

    abilities = RunnerAbilities(frozenset({LoadAccess.WRITE, LoadAccess.READ}), limits_rates=False, takes_ramp=False)

    def run(self, step: LoadStep, area: NamespaceArea, scratch: Path) -> RunnerResult:
        run = partial(run_program, RADOS, subject=step.name, limit_s=longest_s(step), stop=area.stop)
        calls = [rados_bench_arguments(load, area, step.seconds) for load in step.loads]
        with ThreadPoolExecutor(len(calls)) as pool:
            outputs = list(pool.map(run, calls))
        for number, done in enumerate(outputs):
            (scratch / f"rados-{number}.json").write_text(done.stdout)
        texts = [done.require_success(step.name).stdout for done in outputs]
        loads = [parse_rados_bench(text, load, step.name) for load, text in zip(step.loads, texts, strict=True)]
        if step.together:
            # no signal makes rados bench end early and report
            until = min(load.seconds for load in loads)
            loads = [
                parse_rados_bench(text, load, step.name, until) for load, text in zip(step.loads, texts, strict=True)
            ]
        version = run_program(RADOS, ("--version",), subject=step.name, limit_s=10).stdout.strip()
        writes = any(load.access is LoadAccess.WRITE for load in step.loads)
        notes = (NO_PERCENTILES, *((ONE_LETTER,) if writes else ()))
        return RunnerResult(version, tuple(done.command for done in outputs), tuple(loads), notes)


ZEROS_ONLY = "dd writes zeros: a target that compresses stores next to nothing"
_COPIED = re.compile(r"^(\d{1,20}) bytes? .*copied, ([0-9.]{1,20}(?:e-?\d{1,2})?) s", re.MULTILINE)


def dd_arguments(load: StreamLoad, stream: int, folder: Path) -> tuple[str, ...]:
    """The command line of one stream; what is written is flushed before dd ends."""
    file = folder / load.dataset
    blocks = (f"bs={load.block_bytes}", f"count={load.file_bytes // load.block_bytes}")
    name = next(load.names_of(stream))
    if load.access is LoadAccess.WRITE:
        return ("if=/dev/zero", f"of={file.with_name(name)}", *blocks, "conv=fdatasync", "oflag=nofollow")
    return (f"if={file.with_name(name)}", "of=/dev/null", *blocks, "iflag=nofollow")


def parse_dd(done: ProgramOutput, subject: str) -> tuple[int, float]:
    """Bytes and seconds, from the last line that dd writes. Raises BenchmarkError (RESULT_UNREADABLE)."""
    found = _COPIED.findall(done.stderr)
    if not found:
        raise RESULT_UNREADABLE(subject, f"dd reports no bytes: {done.stderr.strip()[-120:] or 'it wrote nothing'}")
    size, seconds = found[-1]
    return int(size), float(seconds)


@dataclass(frozen=True, slots=True)
class EndedStream:
    """What dd wrote, and when it had ended, by the monotonic clock."""

    output: ProgramOutput
    at: float


class DdRunner(Runner[FolderArea]):
    """Whole files of zeros, as fast as it goes; no latencies."""

    abilities = RunnerAbilities(
        frozenset({LoadAccess.WRITE, LoadAccess.READ}), limits_rates=False, takes_ramp=False, ends_together=False
    )

    def run(self, step: LoadStep, area: FolderArea, scratch: Path) -> RunnerResult:
        step, notes = complete_files(step, area)
        notes += drop_caches(step, area)
        streams = [(load, stream) for load in step.loads for stream in range(load.streams)]

        def copy(load: StreamLoad, stream: int) -> EndedStream:
            arguments = dd_arguments(load, stream, area.folder)
            output = run_program(DD, arguments, subject=step.name, limit_s=longest_s(step), stop=area.stop)
            return EndedStream(output, time.monotonic())

        with ThreadPoolExecutor(len(streams)) as pool:
            ended = list(pool.map(copy, *zip(*streams, strict=True)))
        outputs = [stream.output for stream in ended]
        texts = (f"{' '.join(done.command)}\n{done.stderr}" for done in outputs)
        (scratch / "dd.txt").write_text("\n".join(texts))
        by_load = [
            measured_streams(
                load, [done for (theirs, _), done in zip(streams, ended, strict=True) if theirs is load], step
            )
            for load in step.loads
        ]
        version = run_program(DD, ("--version",), subject=step.name, limit_s=10).stdout.partition("\n")[0]
        writes = any(load.access is LoadAccess.WRITE for load in step.loads)
        commands = tuple(done.command for done in outputs)
        return RunnerResult(version, commands, tuple(by_load), (*notes, *((ZEROS_ONLY,) if writes else ())))


def measured_streams(load: StreamLoad, ended: Sequence[EndedStream], step: LoadStep) -> MeasuredLoad:
    """Return what streams did together, from the start of the first to the end of the last: they do not start at once.

    Raises:
        BenchmarkError: RUNNER_FAILED if all failed; RESULT_UNREADABLE.
    """
    good = [stream for stream in ended if stream.output.code == 0]
    if not good:
        ended[0].output.require_success(step.name)
    copied = [parse_dd(stream.output, step.name) for stream in good]
    start = min(stream.at - seconds for stream, (_, seconds) in zip(good, copied, strict=True))
    total = sum(size for size, _ in copied)
    return MeasuredLoad(
        access=load.access,
        bytes=total,
        operations=-(-total // load.block_bytes),
        failed=len(ended) - len(good),
        seconds=max(stream.at for stream in good) - start,
        first_done_s=min(stream.at for stream in good) - start,
    )


_DIRECTIONS = {LoadAccess.READ: "read", LoadAccess.WRITE: "write"}
_NUMBERS = {LoadAccess.READ: 0, LoadAccess.WRITE: 1}
"""Of directions, in logs."""
_BW_FIELDS = 3


def parse_fio(
    text: str, logs: Mapping[str, str], step: LoadStep
) -> tuple[str, tuple[MeasuredLoad, ...], tuple[str, ...]]:
    """The version of fio, what was measured of each load, and what went wrong with single streams.

    Args:
        text: The result file.
        logs: The contents of logs by name, `fio_bw.1.log`; those of the first job have number 1.
        step: What fio was asked to do.

    Raises:
        BenchmarkError: RESULT_UNREADABLE.
    """
    try:
        document = json.loads(text[text.index("{") :], parse_constant=_refuse_constant)
        version, jobs = str(document["fio version"]), list(document["jobs"])
        wanted = [f"{load.access.value}-{load.dataset}" for load in step.loads for _ in range(load.streams)]
        if [job["jobname"] for job in jobs] != wanted:
            raise ValueError("it is about other jobs than those of the step")
        remaining, number, loads = iter(jobs), 1, list[MeasuredLoad]()
        for load in step.loads:
            streams = list(islice(remaining, load.streams))
            theirs = range(number, number + load.streams)
            number += load.streams
            loads += [_measured(access, streams, logs, theirs) for access in load.directions]
        errors = Counter(int(job["error"]) for job in jobs)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RESULT_UNREADABLE(step.name, f"the result of fio cannot be read: {_first_line(error)}") from None
    notes = tuple(f"{count} streams ended with error {code}" for code, count in sorted(errors.items()) if code)
    return version, tuple(loads), notes


def _measured(
    access: LoadAccess, streams: Sequence[Mapping[str, Any]], logs: Mapping[str, str], numbers: range
) -> MeasuredLoad:
    parts = [stream[_DIRECTIONS[access]] for stream in streams]
    ends = [_number(part["runtime"]) / 1000 for part in parts]
    bins: Counter[int] = Counter()
    for part in parts:
        for nanoseconds, count in part["clat_ns"].get("bins", {}).items():
            bins[bucket_of(int(nanoseconds))] += int(_number(count))
    histogram = LatencyHistogram(bins)
    return MeasuredLoad(
        access=access,
        bytes=sum(int(_number(part["io_bytes"])) for part in parts),
        operations=sum(int(_number(part["total_ios"])) for part in parts),
        # a stream ends with its first error
        failed=sum(1 for stream in streams if int(stream["error"])),
        seconds=max(ends),
        first_done_s=min(ends),
        latencies=histogram,
        mean_ms=histogram.mean_ms(),
        series=_series(access, logs, numbers),
    )


def _series(access: LoadAccess, logs: Mapping[str, str], numbers: range) -> tuple[SeriesPoint, ...]:
    speeds: defaultdict[int, float] = defaultdict(float)
    buckets: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for number in numbers:
        for second, fields in _lines(logs.get(f"fio_bw.{number}.log", ""), access, at=2):
            speeds[second] += _number(fields[1]) * 1024
        for second, fields in _lines(logs.get(f"fio_clat_hist.{number}.log", ""), access, at=1):
            counts = {bucket: int(count) for bucket, count in enumerate(fields[3:]) if count not in {"0", " 0"}}
            buckets[second].update(counts)
    return tuple(
        SeriesPoint(second, speed, LatencyHistogram(buckets[second]).percentile_ms(95) if second in buckets else None)
        for second, speed in sorted(speeds.items())
    )


def _lines(log: str, access: LoadAccess, *, at: int) -> Iterator[tuple[int, list[str]]]:
    """The lines of a direction with their seconds; `at`: which field is the direction's number."""
    for line in log.splitlines():
        fields = line.split(",")
        if len(fields) >= _BW_FIELDS and int(fields[at]) == _NUMBERS[access]:
            yield round(_number(fields[0]) / 1000), fields


def _number(value: object) -> float:
    number = float(value) if isinstance(value, int | float | str) else math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r:.40} is not a count or time")
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__} {error}".splitlines()[0][:120]


RESULT = "fio.json"
LOGS = "fio"
CACHED = "the file system takes no direct I/O: figures include the page cache"
_ACCESS = {LoadAccess.WRITE: "write", LoadAccess.READ: "read", LoadAccess.MIXED: "rw"}


def fio_arguments(step: LoadStep, folder: Path, *, direct: bool) -> tuple[str, ...]:
    """The command line of a step. `folder`: where the files are."""
    common = (
        f"--directory={folder}",
        "--thread",
        "--ioengine=psync",
        f"--direct={int(direct)}",
        "--fallocate=none",
        f"--ramp_time={step.ramp_s}",
        f"--runtime={step.seconds}",
        "--output-format=json+",
        f"--output={RESULT}",
        f"--write_bw_log={LOGS}",
        f"--write_hist_log={LOGS}",
        "--log_avg_msec=1000",
        "--log_hist_msec=1000",
        *(("--exitall",) if step.together else ()),
    )
    return (*common, *(argument for load in step.loads for argument in _job(load)))


def _job(load: StreamLoad) -> tuple[str, ...]:
    rate = f"{load.rate}" if load.rate else ""
    return (
        f"--name={load.access.value}-{load.dataset}",
        f"--rw={_ACCESS[load.access]}",
        f"--bs={load.block_bytes}",
        f"--numjobs={load.streams}",
        f"--filename_format={load.dataset}.$jobnum.$filenum",
        f"--size={load.file_bytes}",
        "--zero_buffers" if load.pattern is DataPattern.ZEROS else "--refill_buffers",
        *((f"--rwmixread={load.read_share * 100:.0f}",) if load.access is LoadAccess.MIXED else ()),
        *((f"--rate={rate},{rate}",) if rate else ()),
        # what is not flushed is not stored; what is read must have been written by a step before
        *(("--create_on_open=1", "--end_fsync=1") if load.access is LoadAccess.WRITE else ("--allow_file_create=0",)),
        *(("--time_based",) if load.access is LoadAccess.READ else ()),
    )


class FioRunner(Runner[FolderArea]):
    """Sequential streams on files, with latencies."""

    abilities = RunnerAbilities(frozenset(_ACCESS), limits_rates=True, takes_ramp=True)

    def run(self, step: LoadStep, area: FolderArea, scratch: Path) -> RunnerResult:
        step, notes = complete_files(step, area)
        direct = area.takes_direct_io()
        arguments = fio_arguments(step, area.folder, direct=direct)
        done = run_program(
            FIO, arguments, subject=step.name, limit_s=longest_s(step), stop=area.stop, folder=str(scratch)
        )
        result = scratch / RESULT
        try:
            text = result.read_text(encoding="utf-8", errors="replace")
        except OSError:
            done.require_success(step.name)
            raise RESULT_UNREADABLE(step.name, "fio wrote no result") from None
        logs = {path.name: path.read_text(errors="replace") for path in scratch.glob(f"{LOGS}_*.log")}
        version, loads, errors = parse_fio(text, logs, step)
        if not any(load.operations for load in loads):
            done.require_success(step.name)
        return RunnerResult(version, (done.command,), loads, (*notes, *errors, *(() if direct else (CACHED,))))
