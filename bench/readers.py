"""What our own readers of archives cost next to those of the standard library, and what each of them lets pass.

Archives of many small files and of a few large ones are read to their end, by the readers of include/cvmfs/sources and
by `tarfile` and `zipfile` of the standard library, with what ours do besides: the SHA-256 of the archive, and for a
zip the temporary file. A large build index is read, too: to compare commits, run this with the PYTHONPATH of each. Each
reading has a process of its own; medians of wall time, and the largest growth of memory. Then both kinds of readers
get the same hostile archives. Ends in one line of JSON, which is also written to bench/results/readers.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from publishing.machine import BENCH, description

from include.cvmfs.sources.source import Opener, SourceLimits
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.ziparchive import ZipSource
from include.errors import NightshiftError
from include.nightlies.rules.index import Artifact, BuildIndex
from tests.fakes.archives import Member, archive, file
from tests.fakes.zips import ZipMember, zip_archive

PIECE = 1 << 20
PASSED = 64 << 10
"""`tarfile` copies what is left of such a piece with every read: more takes longer for small members."""
BOMB = 64 << 20
LIMITS = SourceLimits(ratio_from=1 << 20)
Reading = tuple[int, int]
"""How many entries, and the bytes of their contents."""


def main() -> int:
    options = _options()
    if options.read:
        print(json.dumps(_measured(*options.read)))
        return 0
    print(f"machine: {description()}")
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-readers-") as folder:
        measured = dict(_compared(Path(folder), options))
    hostile = {name: [_outcome(read, data) for read in readers] for name, readers, data in _hostile()}
    for name, outcomes in hostile.items():
        print(f"{name:42} ours: {outcomes[0][:60]:60} standard library: {outcomes[1][:60]}")
    result = json.dumps({"machine": description(), "measured": measured, "hostile": hostile})
    if options.results:
        (Path(options.results) / "readers.json").write_text(result + "\n")
    print(result)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50_000, help="small files of 4 KiB [50000]")
    parser.add_argument("--large-mib", type=int, default=128, help="size of each of 4 large files [128]")
    parser.add_argument("--artifacts", type=int, default=100_000, help="of the build index [100000]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="readers of this kind: tar, zip or index")
    parser.add_argument("--results", default=str(BENCH / "results"), help="folder of the result; empty: none")
    parser.add_argument("--read", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _compared(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in _inputs(folder, options):
        kind = path.suffix.removeprefix(".")
        if options.only not in kind:
            continue
        found: dict[str, list[dict[str, float]]] = {reader: [] for reader in READERS if reader.startswith(f"{kind} ")}
        for _ in range(options.rounds):
            for reader, measured in found.items():
                command = [sys.executable, __file__, "--read", reader, str(path)]
                measured.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
        for reader, measured in found.items():
            seconds = statistics.median(one["seconds"] for one in measured)
            figures = {
                "seconds": round(seconds, 3),
                "entries_per_s": round(measured[0]["entries"] / seconds),
                "mb_per_s": round(measured[0]["bytes"] / seconds / 1e6, 1),
                "memory_mib": round(max(one["memory_mib"] for one in measured), 1),
            }
            print(f"{path.name:10} {reader:16} {figures}")
            yield f"{path.stem}: {reader}", figures


def _inputs(folder: Path, options: argparse.Namespace) -> Iterator[Path]:
    """Archives, and an index; half of what the bits of a file could say is in it."""
    for stem, count, size in (("many", options.files, 4096), ("few", 4, options.large_mib << 20)):
        names = [(f"folder{number % 500:03}/file{number:06}.dat", number) for number in range(count)]
        with (
            tarfile.open(folder / f"{stem}.tar", "w") as tar,
            zipfile.ZipFile(folder / f"{stem}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        ):
            for name, number in names:
                data = random.Random(number).randbytes(size // 2).hex().encode()
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
                packed.writestr(name, data)
        yield folder / f"{stem}.tar"
        yield folder / f"{stem}.zip"
    fields = {"format": 1, "slot": "main", "build_id": "b1", "date": "2026-11-21", "complete": True}
    listed = [
        Artifact(
            f"Project{number // 8}", f"x86_64-el9-gcc13-opt{number % 8}", f"b1/Project{number}.tar.zst",
            1000 + number, hashlib.sha256(b"%d" % number).hexdigest(), ("Gaudi", "LCG", "ROOT")[: number % 4],
        ).to_json()
        for number in range(options.artifacts)
    ]  # fmt: skip
    (folder / "list.index").write_text(json.dumps({**fields, "artifacts": listed}))
    yield folder / "list.index"


def _measured(reader: str, path: str) -> dict[str, float]:
    before = _peak_kib()
    with Path(path).open("rb") as stream:
        begun = time.perf_counter()
        entries, size = READERS[reader](stream)
        seconds = time.perf_counter() - begun
    memory = (_peak_kib() - before) / 1024
    return {"seconds": seconds, "entries": entries, "bytes": size, "memory_mib": memory}


def _peak_kib() -> int:
    """The most memory that this program had; what `getrusage` gives counts the process before `exec`, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _ours(source: TarSource | ZipSource) -> Reading:
    entries = size = 0
    for _, opener in source.entries():
        entries += 1
        size += _read(opener) if opener else 0
    return entries, size


def _read(opener: Opener | Callable[[], IO[bytes]]) -> int:
    content = opener()
    try:
        return sum(map(len, iter(lambda: content.read(PIECE), b"")))
    finally:
        content.close()


class _Summed(io.RawIOBase):
    """A stream whose SHA-256 is made as it passes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._sum.update(data)
        return data


def _with_tarfile(stream: IO[bytes]) -> Reading:
    entries = size = 0
    summed = _Summed(stream)
    with tarfile.open(fileobj=summed, mode="r|*", bufsize=PASSED) as tar:
        for member in tar:
            entries += 1
            content = tar.extractfile(member) if member.isfile() else None
            size += _read(lambda content=content: content) if content else 0
    _read(lambda: summed)
    return entries, size


def _with_zipfile(stream: IO[bytes]) -> Reading:
    with tempfile.SpooledTemporaryFile(4 << 20) as kept:
        summed = _Summed(stream)
        for piece in iter(lambda: summed.read(PIECE), b""):
            kept.write(piece)
        with zipfile.ZipFile(kept) as packed:
            infos = packed.infolist()
            return len(infos), sum(_read(lambda info=info: packed.open(info)) for info in infos if not info.is_dir())


def _parsed(stream: IO[bytes]) -> Reading:
    data = stream.read()
    return len(BuildIndex.parse(data, slot="main").artifacts), len(data)


READERS: dict[str, Callable[[IO[bytes]], Reading]] = {
    "tar ours": lambda stream: _ours(TarSource(stream, "bench.tar", limits=LIMITS)),
    "tar tarfile": _with_tarfile,
    "zip ours": lambda stream: _ours(ZipSource(stream, "bench.zip", limits=LIMITS)),
    "zip zipfile": _with_zipfile,
    "index ours": _parsed,
}
TAR, ZIP = (READERS["tar ours"], _with_tarfile), (READERS["zip ours"], _with_zipfile)


def _hostile() -> Iterator[tuple[str, tuple[Callable[[IO[bytes]], Reading], ...], bytes]]:
    two = archive([file("a", b"1"), file("b", b"2")])
    pax = lambda record: Member(b"x", b"%d %s\n" % (len(record) + 4, record), type=b"x")  # noqa: E731
    yield "tar: name with ..", TAR, archive([file("../x")])
    yield "tar: absolute name by an extended header", TAR, archive([pax(b"path=/etc/x"), file("a")])
    yield "tar: hard link out of the tree", TAR, archive([Member(b"l", type=b"1", target=b"../x")])
    yield "tar: name that is not UTF-8", TAR, archive([file("a"), Member(b"\xe9")])
    yield "tar: unknown type of member", TAR, archive([file("a"), Member(b"x", type=b"V")])
    yield "tar: sparse file of the GNU kind", TAR, archive([Member(b"x", type=b"S")])
    yield "tar: sparse file by an extended header", TAR, archive([pax(b"GNU.sparse.major=1"), file("a", b"1")])
    yield "tar: extended header of 1 GiB", TAR, archive([Member(b"x", type=b"L", size=1 << 30), file("a")])
    yield "tar: damaged header in mid-archive", TAR, archive([file("a"), Member(b"b", checksum=1), file("c")])
    yield "tar: no end", TAR, two[:-1024]
    yield "tar: members behind the end", TAR, two + bytes(5000) + two
    yield "tar.gz: bytes behind the end", TAR, gzip.compress(two) + b"garbage"
    yield "tar.gz: bomb", TAR, gzip.compress(archive([file("a", bytes(BOMB))]))
    yield "zip: name with ..", ZIP, zip_archive([ZipMember(b"a/../../x", b"1")])
    yield "zip: NUL in a name", ZIP, zip_archive([ZipMember(b"a\0b", b"1")])
    yield "zip: other name in the member's header", ZIP, zip_archive([ZipMember(b"f", b"1", local_name=b"g")])
    yield "zip: content longer than announced", ZIP, zip_archive([ZipMember(b"f", b"", packed=b"junk")])
    yield "zip: directory with content", ZIP, zip_archive([ZipMember(b"d/", b"1", mode=0o40755)])
    yield "zip: bytes before the first member", ZIP, b"x" + zip_archive([ZipMember(b"f", b"1")])
    yield "zip: bytes behind the end", ZIP, zip_archive([ZipMember(b"f", b"1")]) + b"x"
    yield "zip: bomb", ZIP, zip_archive([ZipMember(b"f", bytes(BOMB))])


def _outcome(read: Callable[[IO[bytes]], Reading], data: bytes) -> str:
    try:
        entries, size = read(io.BytesIO(data))
    except (NightshiftError, tarfile.TarError, zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return f"read: {entries} entries, {size} bytes"


if __name__ == "__main__":
    sys.exit(main())
