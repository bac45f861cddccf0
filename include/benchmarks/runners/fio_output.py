"""What fio writes: its JSON (`json+`), and logs of bandwidth and latencies over time. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from include.benchmarks.errors import RESULT_UNREADABLE
from include.benchmarks.latencies import LatencyHistogram, bucket_of
from include.benchmarks.loads import LoadAccess, LoadStep
from include.benchmarks.results import MeasuredLoad, SeriesPoint

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
            accesses = [LoadAccess.READ, LoadAccess.WRITE] if load.access is LoadAccess.MIXED else [load.access]
            loads += [_measured(access, streams, logs, theirs) for access in accesses]
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
    histogram = LatencyHistogram.merged(LatencyHistogram(dict(_bins(part))) for part in parts)
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


def _bins(part: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    counts: Counter[int] = Counter()
    for nanoseconds, count in part["clat_ns"].get("bins", {}).items():
        counts[bucket_of(int(nanoseconds))] += int(_number(count))
    return iter(counts.items())


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
