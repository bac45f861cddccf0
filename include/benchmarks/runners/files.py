"""What runners on files have in common: how much of each file there is to read, and caches that are dropped."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from include.benchmarks.errors import RUNNER_FAILED, TARGET_UNUSABLE
from include.benchmarks.loads import LoadStep, StreamLoad
from include.benchmarks.targets.path import FolderArea

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
NOT_DROPPED = "the page cache of this machine was not dropped: only root may; its own part of the files was"


def complete_files(step: LoadStep, area: FolderArea) -> tuple[LoadStep, tuple[str, ...]]:
    """The step, reading no further than the shortest file of each dataset goes; what had to be shortened.

    Raises:
        BenchmarkError: RUNNER_FAILED if a dataset is not there.
    """
    loads, notes = [], []
    for load in step.loads:
        shorter = _shortened(step, load, area) if load.needs_data else load
        if shorter != load:
            notes.append(f"{load.dataset}: only the first {shorter.file_bytes >> 20} MiB of each file were written")
        loads.append(shorter)
    return replace(step, loads=tuple(loads)), tuple(notes)


def drop_caches(step: LoadStep, area: FolderArea) -> tuple[str, ...]:
    """Let what is read come from the target, not from memory; what could not be done."""
    os.sync()
    for load in step.loads:
        for name in load.names() if load.needs_data else ():
            file = os.open(area.folder / name, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
    try:
        DROP_CACHES.write_text("3")
    except OSError:
        return (NOT_DROPPED,)
    return ()


def _shortened(step: LoadStep, load: StreamLoad, area: FolderArea) -> StreamLoad:
    try:
        shortest = min((area.folder / name).lstat().st_size for name in load.names())
    except FileNotFoundError as error:
        raise RUNNER_FAILED(step.name, f"{Path(error.filename).name} was not written before") from None
    except OSError as error:
        raise TARGET_UNUSABLE(step.name, f"{area.where}: {error.strerror}") from error
    return up_to(step, load, shortest)


def up_to(step: LoadStep, load: StreamLoad, shortest: int) -> StreamLoad:
    """The load, reading no further than its shortest file goes. Raises BenchmarkError (RUNNER_FAILED)."""
    usable = min(load.file_bytes, shortest // load.block_bytes * load.block_bytes)
    if not usable:
        what = f"the files of {load.dataset} have less than one block of {load.block_bytes} bytes"
        raise RUNNER_FAILED(step.name, what)
    return replace(load, file_bytes=usable)
