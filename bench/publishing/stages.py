"""Where the processor time of a preparation goes: each stage alone, over the same tree, in one thread.

``python -m publishing.stages``: a job as JSON on standard input (``tarball``, ``compressor``), microseconds of
processor time per file on standard output. What a whole preparation takes beyond their sum are requests, threads and
the interpreter's lock.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compressor, compress
from include.cvmfs.ingest.packing import ContentIndex
from include.cvmfs.ingest.spool import Spool
from include.cvmfs.ingest.tree import build_tree
from include.cvmfs.sources.source import Entry
from include.cvmfs.sources.tarball import TarSource

_TIMES = 3


def stages(tarball: Path, compressor: Compressor) -> dict[str, float]:
    """Microseconds per file of each stage, the best of three."""

    def read() -> list[tuple[Entry, bytes | None]]:
        with tarball.open("rb", buffering=0) as stream:
            return [
                (entry, opener().read() if opener else None)
                for entry, opener in TarSource(stream, "bench.tar").entries()
            ]

    members = read()
    contents = [content for _, content in members if content is not None]
    packed = [compress(content, compressor) for content in contents]
    digests = [hash_bytes(data).digest for data in packed]

    def spool_all(*, catalogs: bool) -> None:
        left = iter(digests)
        with Spool("bench.tar") as spool:
            for entry, content in members:
                spool.add(entry, None if content is None else next(left))
            spool.complete()
            if catalogs:
                build_tree(spool, "/bench", algorithm=Algorithm.SHA1, compression=compressor.compression, put=_drop)

    with tempfile.TemporaryDirectory() as folder:
        index = ContentIndex(Path(folder) / "index.db", algorithm=Algorithm.SHA1, compression=compressor.compression)
        with index:
            found = {
                "read": _cpu_s(read),
                "index": _cpu_s(partial(_remember, index, contents)),
                "compress": _cpu_s(lambda: [compress(data, compressor) for data in contents]),
                "hash": _cpu_s(lambda: [hash_bytes(data) for data in packed]),
                "spool": _cpu_s(lambda: spool_all(catalogs=False)),
                "catalogs": _cpu_s(lambda: spool_all(catalogs=True)),
            }
    found["catalogs"] -= found["spool"]
    return {stage: round(1e6 * seconds / len(contents), 1) for stage, seconds in found.items()}


def _drop(name: ObjectHash, data: bytes) -> None: ...


def _remember(index: ContentIndex, contents: list[bytes]) -> None:
    for data in contents:
        index.remember(index.key(data), bytes(20))


def _cpu_s(step: Callable[[], object]) -> float:
    taken = []
    for _ in range(_TIMES):
        started = time.process_time()
        step()
        taken.append(time.process_time() - started)
    return min(taken)


if __name__ == "__main__":
    job = json.loads(sys.stdin.readline())
    print(json.dumps(stages(Path(job["tarball"]), Compressor(job["compressor"]))))
