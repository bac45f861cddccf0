"""fio under the harness and fio by hand: the same files, blocks and streams in the same folder."""

from __future__ import annotations

import json
import subprocess
from itertools import count
from pathlib import Path

from include.benchmarks.loads import LoadAccess, LoadStep, RunnerKind, StreamLoad
from include.benchmarks.programs import FIO
from include.benchmarks.runners.fio import FioRunner
from include.benchmarks.targets.path import PathBenchmarkTarget
from include.settings.storage_benchmark.blocks import PathTarget

MIB = 1 << 20


class FioArms:
    """Both ways to load a folder."""

    def __init__(self, folder: Path, scratch: Path, *, streams: int, mib: int, seconds: int) -> None:
        settings = PathTarget.model_validate({"kind": "path", "name": "bench", "path": folder})
        self._area = PathBenchmarkTarget(settings).area("harness")
        self._area.create()
        self._scratch = scratch
        self._seconds = seconds
        self._load = StreamLoad(LoadAccess.WRITE, "data", streams, mib * MIB, MIB)
        self._numbers = count()

    def harness(self, access: LoadAccess) -> float:
        """Bytes per second as a campaign measures them."""
        load = self._prepared(access)
        scratch = self._scratch / f"fio-{next(self._numbers)}"
        scratch.mkdir()
        step = LoadStep("harness", RunnerKind.FIO, (load,), self._seconds)
        return FioRunner().run(step, self._area, scratch).loads[0].throughput

    def by_hand(self, access: LoadAccess) -> float:
        """Bytes per second as a person would measure them."""
        load = self._prepared(access)
        what = ("--rw=read", "--time_based") if access is LoadAccess.READ else ("--rw=write", "--end_fsync=1")
        done = subprocess.run(
            [FIO.path(), "--name=hand", f"--directory={self._area.folder}", "--filename_format=data.$jobnum.$filenum",
             f"--numjobs={load.streams}", f"--size={load.file_bytes}", f"--bs={load.block_bytes}", "--ioengine=psync",
             f"--direct={int(self._area.takes_direct_io())}", "--thread", "--fallocate=none", "--create_on_open=1",
             "--refill_buffers", f"--runtime={self._seconds}", "--group_reporting", "--output-format=json", *what],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        job = json.loads(done.stdout)["jobs"][0][access.value]
        return 1000.0 * job["io_bytes"] / job["runtime"]

    def _prepared(self, access: LoadAccess) -> StreamLoad:
        if access is LoadAccess.WRITE:
            self._area.remove_files(self._load.names())
            return self._load
        return StreamLoad(access, "data", self._load.streams, self._load.file_bytes, MIB)
