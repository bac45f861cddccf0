"""A drill of one shared cache: warmers, trimmers and readers at once, in processes that are killed and begun again.

Readers are as the genuine client: they look into the cache, else fetch, write a temporary file, and rename it. They
compare every byte with what the repository has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from include.aliencache.cache import AlienCache
from include.aliencache.contents import Wanted, pinned_objects
from include.aliencache.errors import CacheError
from include.aliencache.names import place_of
from include.aliencache.trim import TrimOptions, trim
from include.aliencache.verify import Level, VerifyOptions, expected_of, verify
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.objects import Compression, load
from include.cvmfs.revision.repository import Repository
from include.settings.caches import Marks, Pins, UseOfObjects
from include.storage.file import FileStore
from tests.fakes.minirepo import FQRN, MiniRepository, opened, public_key

FILES, BYTES = 240, 48_000
WARMERS, TRIMMERS, READERS = 4, 2, 8
KILL_EVERY_S = 0.7


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    """Reads of all readers, those that failed or were wrong, kills, objects trimmed, and what was wrong at the end."""

    reads: int
    errors: int
    wrong: int
    kills: int
    trimmed: int
    faults: tuple[str, ...]


def run(folder: Path, seconds: float) -> DrillOutcome:
    """Drill for some seconds below a folder."""
    store = FileStore(folder / "store")
    mini = MiniRepository(store)
    mini.nested("/set")
    draw = random.Random(7)
    for number in range(FILES):
        how = Compression.NONE if number % 2 else Compression.ZLIB
        mini.file(f"/set/flux{number:03d}", draw.randbytes(BYTES), how)
    mini.build().publish()
    (folder / "key.pub").write_bytes(public_key())
    names = {
        f"{entry.hash.text}": [entry.size, entry.compression.value] for entry in mini.entries.values() if entry.hash
    }
    (folder / "names.json").write_text(json.dumps(names))
    cache = AlienCache(folder / "cache")
    cache.initialise()
    young = folder / "cache/txn/fetchYOUNG1"
    young.write_bytes(b"of a client that is slow")
    kills = _beside_kills(folder, seconds)
    reports = [json.loads(file.read_text()) for file in folder.glob("reader.*.json")]
    faults = [] if len(reports) == READERS else [f"{READERS - len(reports)} readers ended early"]
    faults += [f"the folder {name} is gone" for name in cache.layout().missing]
    faults += [] if young.exists() else ["a young temporary file is gone"]
    repository = opened(store)
    done = warm(cache, repository, [store], WarmOptions(Wanted()))
    report = verify(cache, expected_of({FQRN: repository}, []), [store], VerifyOptions(Level.FETCH))
    faults += [f"damaged: {', '.join(report.damaged)}"] if report.damaged_count else []
    faults += [f"{report.not_judged} objects could not be judged"] if report.not_judged else []
    faults += [] if report.objects >= done.objects else [f"{report.objects} objects after a warm of {done.objects}"]
    for role in ("warmer", "trimmer"):
        faults += [] if sum(_notes(folder, role)) else [f"no {role} did anything: the drill shows nothing"]
    sums = {key: sum(one[key] for one in reports) for key in ("reads", "errors", "wrong")}
    return DrillOutcome(
        sums["reads"], sums["errors"], sums["wrong"], kills, sum(_notes(folder, "trimmer")), tuple(faults)
    )


def _beside_kills(folder: Path, seconds: float) -> int:
    readers = [_start(folder, "reader") for _ in range(READERS)]
    workers = [[role, _start(folder, role)] for role in ["warmer"] * WARMERS + ["trimmer"] * TRIMMERS]
    kills, end, ended = 0, time.monotonic() + seconds, {"warmer": 0, "trimmer": 0}
    try:
        while time.monotonic() < end:
            time.sleep(KILL_EVERY_S)  # a kill comes at any moment: that is the drill
            # of a kind of which one has ended its work since the last kill: else a busy machine would see none of it
            ready = [worker for worker in workers if len(_notes(folder, str(worker[0]))) > ended[str(worker[0])]]
            if not ready:
                continue
            worker = random.choice(ready)
            ended[str(worker[0])] = len(_notes(folder, str(worker[0])))
            worker[1].kill()  # type: ignore[attr-defined]
            worker[1].wait()  # type: ignore[attr-defined]
            worker[1] = _start(folder, str(worker[0]))
            kills += 1
    finally:
        (folder / "stop").touch()
        for process in readers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        for _, process in workers:
            process.kill()  # type: ignore[attr-defined]
            process.wait()  # type: ignore[attr-defined]
        for process in readers:
            process.kill()
            process.wait()
    return kills


def _start(folder: Path, role: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.fakes.cachedrill", role, str(folder)])


def _notes(folder: Path, role: str) -> list[int]:
    """Objects that came or went in each round of a kind of worker."""
    log = folder / f"{role}.log"
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def _until_stop(folder: Path) -> bool:
    return not (folder / "stop").exists()


def _opened(folder: Path) -> Repository:
    """The repository, with the key of the process that made it."""
    return opened(FileStore(folder / "store"), public_keys=[(folder / "key.pub").read_bytes()])


def _note(folder: Path, role: str, count: int) -> None:
    with (folder / f"{role}.log").open("a") as log:
        log.write(f"{count}\n")


def warmer(folder: Path) -> None:
    store, cache = FileStore(folder / "store"), AlienCache(folder / "cache")
    while _until_stop(folder):
        report = warm(cache, _opened(folder), [store], WarmOptions(Wanted(), workers=2))
        _note(folder, "warmer", report.fetched)


def trimmer(folder: Path) -> None:
    cache = AlienCache(folder / "cache")
    marks = Marks(used_above=FILES * BYTES * 6 // 10, used_until=FILES * BYTES // 2)
    while _until_stop(folder):
        pins = pinned_objects(cache, [FQRN], lambda _: _opened(folder), Pins())
        with contextlib.suppress(CacheError):
            _note(folder, "trimmer", trim(cache, TrimOptions(marks, UseOfObjects.ATIME, hours=0), pins).removed)


def reader(folder: Path) -> None:
    store, cache, totals = FileStore(folder / "store"), folder / "cache", {"reads": 0, "errors": 0, "wrong": 0}
    names = {
        ObjectHash.parse(text): Compression(how)
        for text, (_, how) in json.loads((folder / "names.json").read_text()).items()
    }
    right = {name: hashlib.sha256(load(store, name, how)).digest() for name, how in names.items()}
    while _until_stop(folder):
        name = random.choice(list(names))
        place = cache / place_of(name)
        try:
            try:
                content = place.read_bytes()
            except FileNotFoundError:
                content = load(store, name, names[name])
                temporary = cache / "txn" / f"fetch{secrets.token_hex(3)}"
                temporary.write_bytes(content)
                temporary.chmod(0o660)
                temporary.replace(place)
        except OSError:
            totals["errors"] += 1
            continue
        totals["reads"] += 1
        totals["wrong"] += hashlib.sha256(content).digest() != right[name]
    (folder / f"reader.{os.getpid()}.json").write_text(json.dumps(totals))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    {"warmer": warmer, "trimmer": trimmer, "reader": reader}[sys.argv[1]](Path(sys.argv[2]))
