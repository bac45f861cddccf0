"""A data set prepared by the profile `data`, beside a floor: the same files read, cut, hashed and written.

Both sides run in processes of their own, in the order floor, ours, ours, floor, each from a set that is on the disk
only. Then a file of 2 GB is overwritten in its middle, and 1 MB is inserted at its head, for two choices of limits.
Ends in one line of JSON; code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from bench.cache import FQRN, GB, MB
from bench.publishing.machine import Idle, description
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest.chunker import Chunker, ChunkLimits
from include.cvmfs.ingest.prepare import DEFAULTS, PrepareOptions, prepare
from include.cvmfs.sources.artifact import DirectorySource
from include.publishers.base import DATA_CHUNKS
from include.storage.open import open_store

FILE_MB = 140
LEAST_RATIO, MOST_MB, MOST_CHUNKS = 0.8, 1024.0, 3
OTHER_LIMITS = ChunkLimits(24 << 20, 32 << 20, 64 << 20)
CHANGED, INSERTED = 7 * MB, MB


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench data-set", description=__doc__)
    parser.add_argument("--gb", type=float, default=15.0, help="of the set, in files of 140 MB [15]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return _job(**json.loads(options.job))
    print(f"machine: {description()}")
    free = shutil.disk_usage(options.folder).free
    if options.gb * GB * 2.2 > free:
        raise SystemExit(
            f"needs {options.gb * 2.2:.0f} GB, and {options.folder} has {free / GB:.0f} GB free: give --gb less"
        )
    idle = Idle()
    with tempfile.TemporaryDirectory(prefix="nightshift-data-set-", dir=options.folder) as name:
        folder = Path(name)
        source = folder / "set"
        source.mkdir()
        for number in range(max(1, round(options.gb * GB / (FILE_MB * MB)))):
            with (source / f"flux{number:04d}").open("wb") as file:
                for _ in range(FILE_MB // 20):
                    file.write(os.urandom(20 * MB))
        size = sum(path.stat().st_size for path in source.iterdir())
        runs: dict[str, list[dict[str, float]]] = {"floor": [], "ours": []}
        for what in ("floor", "ours", "ours", "floor"):
            shutil.rmtree(folder / "store", ignore_errors=True)
            os.sync()
            _forget(source)
            runs[what].append(_run(what, source, folder / "store"))
            print(f"{what}: {runs[what][-1]['s']:.1f} s, {runs[what][-1]['cpu_s']:.1f} CPU s", flush=True)
        figures = _figures(runs, size)
    figures |= _changes()
    missed = [name for name, bad in (
        ("ratio", figures["ratio"] < LEAST_RATIO), ("mb", figures["mb"] > MOST_MB),
        ("overwritten_chunks", figures["overwritten_chunks"] > MOST_CHUNKS),
    ) if bad]  # fmt: skip
    print(f"missed: {', '.join(missed) or 'nothing'}; the machine was idle for {idle.share():.0%} of it")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()} | {"ok": not missed}))
    return 1 if missed else 0


def _figures(runs: dict[str, list[dict[str, float]]], size: int) -> dict[str, float]:
    seconds = {what: mean(run["s"] for run in done) for what, done in runs.items()}
    most = max(run["mb"] for run in runs["ours"])
    for what, done in runs.items():
        cpu = mean(run["cpu_s"] for run in done) / (size / GB)
        print(f"{what}: {size / GB:.2f} GB in {seconds[what]:.1f} s ({size / MB / seconds[what]:.0f} MB/s), "
              f"{cpu:.2f} CPU s per GB, {max(run['mb'] for run in done):.0f} MB")  # fmt: skip
    return {"set_gb": size / GB, "ratio": seconds["floor"] / seconds["ours"], "mb": most, "ours_s": seconds["ours"]}


def _changes() -> dict[str, float]:
    """Chunks that a change of a file of 2 GB makes new, by two choices of limits; a seed draws the content."""
    figures: dict[str, float] = {}
    for name, limits in (("", DATA_CHUNKS), ("other_", OTHER_LIMITS)):
        before = _cut(limits, _content())
        sizes = f"{limits.min >> 20}/{limits.avg >> 20}/{limits.max >> 20} MiB"
        overwritten = len(_cut(limits, _content(overwritten=True)) - before)
        inserted = len(_cut(limits, _content(inserted=True)) - before)
        print(f"{sizes}: {len(before)} chunks; new by 7 MB in the middle {overwritten}, by 1 MB at the head {inserted}")
        figures |= {
            f"{name}chunks": len(before), f"{name}overwritten_chunks": overwritten, f"{name}inserted_chunks": inserted
        }  # fmt: skip
    return figures


def _content(*, overwritten: bool = False, inserted: bool = False) -> Iterator[bytes]:
    draw, other = random.Random(1), random.Random(2)
    if inserted:
        yield other.randbytes(INSERTED)
    for number in range(2000):
        block = draw.randbytes(MB)
        yield other.randbytes(MB) if overwritten and 1000 <= number < 1000 + CHANGED // MB else block


def _cut(limits: ChunkLimits, content: Iterator[bytes]) -> set[bytes]:
    chunker, pieces = Chunker(limits), list[bytes]()
    for block in content:
        pieces += [hashlib.sha1(piece, usedforsecurity=False).digest() for piece in chunker.feed(block)]
    return {*pieces, *(hashlib.sha1(piece, usedforsecurity=False).digest() for piece in chunker.finish())}


def _forget(source: Path) -> None:
    """Take the set out of the system's cache: else what comes first reads from memory, and what follows from disk."""
    for path in source.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(what: str, source: Path, target: Path) -> dict[str, float]:
    job = json.dumps({"what": what, "source": str(source), "target": str(target)})
    command = [sys.executable, "-m", "bench.data_set", "--job", job]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _job(what: str, source: str, target: str) -> int:
    began = time.monotonic()
    (_floor if what == "floor" else _prepare)(Path(source), Path(target))
    usage: Any = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usage)
    print(json.dumps({"s": time.monotonic() - began, "cpu_s": cpu, "mb": usage[0].ru_maxrss / 1024}))
    return 0


def _prepare(source: Path, target: Path) -> None:
    options = PrepareOptions(
        compressor=Compressor.NONE, chunking=DATA_CHUNKS,
        memory_mb=max(DEFAULTS.memory_mb, (os.cpu_count() or 1) * 3 * DATA_CHUNKS.max >> 20),
    )  # fmt: skip
    store = open_store(target.as_uri())
    prepare(
        DirectorySource(source), store=store, fqrn=FQRN, destination="/flux", now=datetime.now(UTC), options=options
    )


def _floor(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(_floor_file, [(str(path), str(target)) for path in sorted(source.iterdir())]):
            pass
    os.sync()


def _floor_file(job: tuple[str, str]) -> None:
    path, target = job
    chunker = Chunker(DATA_CHUNKS)
    with Path(path).open("rb", buffering=0) as file:
        while True:
            block = file.read(MB)
            for piece in chunker.feed(block) if block else chunker.finish():
                (Path(target) / hashlib.sha1(piece, usedforsecurity=False).hexdigest()).write_bytes(piece)
            if not block:
                return


if __name__ == "__main__":
    sys.exit(main())
