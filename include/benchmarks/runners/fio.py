"""fio as a runner: one job for each load, one thread for each stream."""

from __future__ import annotations

from pathlib import Path

from include.benchmarks.errors import RESULT_UNREADABLE
from include.benchmarks.loads import DataPattern, LoadAccess, LoadStep, StreamLoad
from include.benchmarks.programs import FIO, run_program
from include.benchmarks.results import RunnerResult
from include.benchmarks.runners.base import Runner, RunnerAbilities, longest_s
from include.benchmarks.runners.files import complete_files
from include.benchmarks.runners.fio_output import parse_fio
from include.benchmarks.targets.path import FolderArea

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
