"""A tree of very many entries, prepared and published on a file store through the real gateway, within bounded memory.

The tree is a tar stream that is made while it is read: folders of a thousand entries, each with a catalog, most of
their files small and alike, one in ten like no other. Ends in one line of JSON, with code 1 if memory was exceeded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench.publishing import lab
from bench.publishing.machine import Ran, description, start
from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.commit.create import create_repository
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key, save_signer
from include.cvmfs.revision.repository import Repository

ENTRIES_PER_FOLDER = 1000
ALIKE = 64
DISTINCT_EVERY = 10
SYMLINK_EVERY = 20
DISTINCT_BYTES = 1024
MOST_MB = 400
NIGHT_H = 8
FILES_PER_NIGHT = 3_800_000
_MTIME = 1_790_000_000


def main() -> int:
    options = _options()
    print(f"machine: {description()}")
    print(f"{options.entries} entries, store {options.store}")
    folder = Path(tempfile.mkdtemp(prefix="nightshift-million-"))
    try:
        with lab.store(options.store, folder, connections=64) as place:
            repository, public_key = _found(place, folder)
            ran = _publish(repository, folder, public_key, options.entries)
            report = check(_opened(repository, public_key), quick=not options.check)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _conclude(ran, report, options.entries)


def _found(place: Place, folder: Path) -> tuple[Place, Path]:
    """A new repository at the place, and the file of its public key."""
    now, repository = datetime.now(UTC), place.repository("million")
    master, signer = generate_master(), generate_repository_key(FQRN, now)
    create_repository(repository.open(), FQRN, master=master, signer=signer, now=now)
    save_signer(folder / "keys", FQRN, signer)
    public_key = folder / "repository.pub"
    public_key.write_bytes(format_public_key(master.public_key()))
    return repository, public_key


def _publish(place: Place, folder: Path, public_key: Path, entries: int) -> Ran:
    pipe = folder / "stream.tar"
    os.mkfifo(pipe)
    with lab.gateway(place, folder / "keys", folder / "gateway.db") as client:
        job = {
            **client,
            "place": place.as_json(),
            "public_key": str(public_key),
            "tarball": str(pipe),
            "destination": "/nightlies/million/project/platform",
            "earlier": [],
            "var": str(folder / "var"),
        }
        running = start("bench.publishing.publisher", job=job)
        threading.Thread(target=_write, args=(pipe, entries), daemon=True).start()
        return running.wait()


def _write(pipe: Path, entries: int) -> None:
    """Until the end, or until nobody reads any more."""
    try:
        with pipe.open("wb", buffering=1 << 20) as archive:
            for block in stream(entries):
                archive.write(block)
    except BrokenPipeError:
        return


def stream(entries: int) -> Iterator[bytes]:
    """The archive of so many entries, in blocks; folders and markers are entries, too."""
    alike = [hashlib.shake_128(b"%d" % number).digest(number * 8) for number in range(ALIKE)]
    folders = {True: _header(tarfile.DIRTYPE, 0), False: _header(tarfile.SYMTYPE, 0, "../target")}
    files: dict[int, tuple[bytes, int]] = {}
    made = 0
    while made < entries:
        above = b"d%03d/f%06d" % (made // ENTRIES_PER_FOLDER // 100, made // ENTRIES_PER_FOLDER)
        yield _named(folders[True], above + b"/")
        made += 1
        for number in range(min(entries - made, ENTRIES_PER_FOLDER - 1)):
            name = b"%b/%b" % (above, b"entry-%04d" % number if number else b".cvmfscatalog")
            if number and number % SYMLINK_EVERY == 0:
                yield _named(folders[False], name)
                made += 1
                continue
            if number % DISTINCT_EVERY == 1:
                content = hashlib.shake_128(b"%d" % made).digest(DISTINCT_BYTES)
            else:
                content = alike[number % ALIKE] if number else b""
            size = len(content)
            if size not in files:
                files[size] = _header(tarfile.REGTYPE, size)
            yield _named(files[size], name) + content + bytes(-size % tarfile.BLOCKSIZE)
            made += 1
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(kind: bytes, size: int, target: str = "") -> tuple[bytes, int]:
    """A header without a name, and the sum of its bytes, its own field counting as blanks."""
    made = tarfile.TarInfo("")
    made.type, made.size, made.mtime, made.linkname = kind, size, _MTIME, target
    made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    plain = made.tobuf(tarfile.USTAR_FORMAT)
    return plain, sum(plain[100:148]) + 8 * ord(" ") + sum(plain[156:])


def _named(header: tuple[bytes, int], name: bytes) -> bytes:
    plain, total = header
    return name.ljust(100, b"\0") + plain[100:148] + b"%06o\0 " % (total + sum(name)) + plain[156:]


def _opened(place: Place, public_key: Path) -> Repository:
    return Repository.open(place.open(), fqrn=FQRN, public_keys=[public_key.read_bytes()], now=datetime.now(UTC))


def _conclude(ran: Ran, report: CheckReport, entries: int) -> int:
    out, seconds = ran.outcome, ran.outcome["seconds"]
    rate, files = entries / seconds, out["files"]
    phases = " ".join(f"{name} {value:.1f}" for name, value in out["phases"].items())
    print(
        f"{rate:,.0f} entries/s, {files / seconds:,.0f} files/s, {seconds:.0f} s: {phases}; machine idle {ran.idle:.0%}"
    )
    quarters = [max(ran.samples[: len(ran.samples) * part // 4 or 1]) for part in (1, 2, 3, 4)]
    after = [round(mb) for mb in quarters]
    print(f"memory of its processes: {ran.rss_mb:.0f} MB at most; highest by the end of each quarter {after} MB")
    print(f"of its own process, MB: {out['peaks_mb']}; {out['catalogs']} catalogs, {out['objects_new']} objects stored")
    hours = FILES_PER_NIGHT / (files / seconds) / 3600
    print(f"a night of {FILES_PER_NIGHT:,} files takes {hours:.2f} h: {NIGHT_H / hours:.1f} of them fit in {NIGHT_H} h")
    print(f"check: {report.verdict}, {report.entries} entries in {report.catalogs} catalogs")
    result = {
        "entries": entries,
        "files": files,
        "entries_per_s": round(rate, 1),
        "files_per_s": round(files / seconds, 1),
        "rss_mb": round(ran.rss_mb),
        "rss_mb_by_quarter": after,
        "cpu_s_per_1000": round(1000 * out["cpu_s"] / entries, 3),
        "puts": out["puts"],
        "heads": out["heads"],
        "catalogs": out["catalogs"],
        "lease_held_s": round(out["lease_held_s"], 3),
        "nights_per_night": round(NIGHT_H / hours, 1),
        "problems": report.problem_count,
    }
    print(json.dumps(result))
    return 0 if report.ok and ran.rss_mb <= MOST_MB else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--store", default="file", help="file (tmpfs), file:///folder, weed or radosgw")
    parser.add_argument("--check", action="store_true", help="afterwards look for every object, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
