"""`rados bench` as a runner: objects of a pool, without a file system above it."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from include.benchmarks.errors import RESULT_UNREADABLE
from include.benchmarks.loads import LoadAccess, LoadStep, StreamLoad
from include.benchmarks.programs import RADOS, ProgramOutput, run_program
from include.benchmarks.results import MeasuredLoad, RunnerResult, SeriesPoint
from include.benchmarks.runners.base import Runner, RunnerAbilities, longest_s
from include.benchmarks.targets.pool import NamespaceArea

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
        what = f"{type(error).__name__} {error}".splitlines()[0][:120]
        raise RESULT_UNREADABLE(subject, f"the result of rados bench cannot be read: {what}") from None
    return MeasuredLoad(load.access, made * size, made, 0, seconds, seconds, None, mean, points)


class RadosRunner(Runner[NamespaceArea]):
    """Whole objects, written and read in sequence; mean latencies."""

    abilities = RunnerAbilities(frozenset({LoadAccess.WRITE, LoadAccess.READ}), limits_rates=False, takes_ramp=False)

    def run(self, step: LoadStep, area: NamespaceArea, scratch: Path) -> RunnerResult:
        calls = [
            partial(
                run_program,
                RADOS,
                rados_bench_arguments(load, area, step.seconds),
                subject=step.name,
                limit_s=longest_s(step),
                stop=area.stop,
            )
            for load in step.loads
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            outputs: list[ProgramOutput] = list(pool.map(lambda call: call(), calls))
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
