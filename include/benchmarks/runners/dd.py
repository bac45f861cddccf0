"""dd as a runner: one process for each stream, as the source of the `hlt2-*` presets measured."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from include.benchmarks.errors import RESULT_UNREADABLE
from include.benchmarks.loads import LoadAccess, LoadStep, StreamLoad
from include.benchmarks.programs import DD, ProgramOutput, run_program
from include.benchmarks.results import MeasuredLoad, RunnerResult
from include.benchmarks.runners.base import Runner, RunnerAbilities, longest_s
from include.benchmarks.runners.files import complete_files, drop_caches
from include.benchmarks.targets.path import FolderArea

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
    """What streams did together, from the start of the first to the end of the last: they do not start at once.

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
