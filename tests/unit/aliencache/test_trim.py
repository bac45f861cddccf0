"""A trim takes what was used last longest ago, down to its marks, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from include.aliencache.cache import AlienCache, Space
from include.aliencache.contents import PinnedObjects, Wanted, pinned_objects
from include.aliencache.errors import CACHE_UNUSABLE, NO_MARKS, NOT_A_CACHE, PRELOADED, USE_UNKNOWN
from include.aliencache.names import SHARDS
from include.aliencache.trim import Need, TrimOptions, TrimReport, need_of, trim
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.format.hashes import ObjectHash
from include.settings.caches import Marks, Pins, UseOfObjects
from tests.fakes.minirepo import FQRN, MiniRepository, opened
from tests.fakes.refused import refused

HOUR, DAY = 3600, 86400
BLOCK = 4096


def put(cache: AlienCache, number: int, days: float, *, size: int = BLOCK, shard: int | None = None) -> Path:
    """An object that was used last so many days ago."""
    first = number % 256 if shard is None else shard
    place = cache.path / SHARDS[first] / f"{number:038x}"
    place.write_bytes(b"x" * size)
    then = time.time() - days * DAY
    os.utime(place, (then, then))
    return place


def trimmed(cache: AlienCache, *, used_above: int = 1, used_until: int = 0, pins: PinnedObjects | None = None,
            use: UseOfObjects = UseOfObjects.ATIME, **options: object) -> TrimReport:  # fmt: skip
    marks = Marks.model_construct(used_above=used_above, used_until=used_until)
    return trim(cache, TrimOptions(marks, use, **options), pins or PinnedObjects())  # type: ignore[arg-type]


def test_the_oldest_go_until_the_second_mark(cache: AlienCache) -> None:
    places = [put(cache, number, days=number + 1) for number in range(10)]
    report = trimmed(cache, used_above=9 * BLOCK, used_until=6 * BLOCK)
    assert [place.exists() for place in places] == [True] * 6 + [False] * 4
    assert (report.objects, report.removed, report.bytes_removed) == (10, 4, 4 * BLOCK)
    assert not report.still_above
    assert time.time() - report.line == pytest.approx(7 * DAY, abs=120)
    assert sum(count for count, _ in report.ages) == 10
    assert [count for reason, count in report.reasons.items() if reason.startswith("not used since")] == [4]


def test_below_the_mark_nothing_goes(cache: AlienCache) -> None:
    place = put(cache, 1, days=100)
    report = trimmed(cache, used_above=2 * BLOCK, used_until=BLOCK)
    assert (report.removed, report.line, place.exists()) == (0, 0, True)


def test_a_dry_run_reports_the_same_and_takes_nothing(cache: AlienCache) -> None:
    for number in range(10):
        put(cache, number, days=number + 1)
    dry = trimmed(cache, used_above=9 * BLOCK, used_until=6 * BLOCK, dry_run=True)
    assert len(list(cache.path.glob("??/*"))) == 10
    real = trimmed(cache, used_above=9 * BLOCK, used_until=6 * BLOCK)
    assert (dry.removed, dry.bytes_removed, dry.reasons) == (real.removed, real.bytes_removed, real.reasons)


def test_pinned_and_young_objects_stay_and_the_mark_stays_passed(cache: AlienCache) -> None:
    pinned, young, old = put(cache, 1, days=9), put(cache, 2, days=0.01), put(cache, 3, days=3)
    pins = PinnedObjects()
    pins.add([ObjectHash(bytes.fromhex(pinned.parent.name + pinned.name))])
    report = trimmed(cache, pins=pins)
    assert (pinned.exists(), young.exists(), old.exists()) == (True, True, False)
    assert report.still_above
    assert report.reasons["younger than the minimum age"] == 1


def test_an_object_that_is_read_meanwhile_stays(cache: AlienCache, monkeypatch: pytest.MonkeyPatch) -> None:
    place, other = put(cache, 1, days=9), put(cache, 2, days=8)
    original = os.stat

    def reading_first(path: object, **options: object) -> os.stat_result:
        if path == place.name:
            os.utime(place, (time.time(), original(place).st_mtime))
        return original(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", reading_first)
    report = trimmed(cache, used_until=BLOCK)
    assert (place.exists(), other.exists()) == (True, False)
    assert report.reasons["used meanwhile"] == 1


def test_age_takes_what_came_first_whenever_it_was_read(cache: AlienCache) -> None:
    read_now, came_later = put(cache, 1, days=9), put(cache, 2, days=3)
    os.utime(read_now, (time.time(), read_now.stat().st_mtime))
    trimmed(cache, used_above=BLOCK, used_until=BLOCK, use=UseOfObjects.AGE)
    assert (read_now.exists(), came_later.exists()) == (False, True)


def test_temporary_files_go_after_a_day_and_nothing_foreign_does(cache: AlienCache) -> None:
    rest = "0" * 38
    old_txn, new_txn = cache.path / "txn/fetchAAAAAA", cache.path / "txn/fetchBBBBBB"
    beside, foreign = cache.path / f"00/{rest}aB3xYz", cache.path / "00/README"
    link, folder = cache.path / f"01/{rest}", cache.path / f"02/{rest}"
    outside = cache.path.parent / "outside"
    outside.write_text("kept")
    link.symlink_to(outside)
    folder.mkdir()
    for place in (old_txn, new_txn, beside, foreign):
        place.write_text("x")
    for place in (old_txn, beside, foreign):
        os.utime(place, (time.time(), time.time() - 25 * HOUR))
    report = trimmed(cache)
    assert [place.exists() for place in (old_txn, new_txn, beside, foreign)] == [False, True, False, True]
    assert (link.is_symlink(), folder.is_dir(), outside.read_text()) == (True, True, "kept")
    assert (report.temporary_removed, report.foreign) == (2, 3)
    assert all((cache.path / name).is_dir() for name in (*SHARDS, "txn", "quarantaine"))


def test_a_linked_folder_of_objects_is_not_followed(cache: AlienCache, tmp_path: Path) -> None:
    outside = tmp_path / "others"
    outside.mkdir()
    (outside / ("0" * 38)).write_text("kept")
    (cache.path / "00").rmdir()
    (cache.path / "00").symlink_to(outside)
    with refused(CACHE_UNUSABLE):
        trimmed(cache)
    assert (outside / ("0" * 38)).read_text() == "kept"


def test_relatime_objects_near_the_line_are_re_armed(cache: AlienCache) -> None:
    places = [put(cache, number, days=number + 1) for number in range(4)]
    for place in places:  # read since: the access time is after the change, and a second read would not be seen
        os.utime(place, (time.time() + 5, place.stat().st_mtime))
    time.sleep(0.01)
    used = [place.stat().st_atime for place in places]
    report = trimmed(cache, used_above=4 * BLOCK - 1, used_until=3 * BLOCK, use=UseOfObjects.RELATIME)
    left = [place for place in places if place.exists()]
    assert report.removed == 1
    assert report.rearmed >= 1
    assert {place.stat().st_atime for place in left} <= set(used)


def test_a_preloaded_cache_is_refused_or_loses_whole_catalogs_first(cache: AlienCache) -> None:
    (cache.path / "dirtab.a.example.org").write_text("/\n")
    place = put(cache, 1, days=9)
    with refused(PRELOADED):
        trimmed(cache)
    assert place.exists()
    trimmed(cache, catalogs_first=True)
    assert not place.exists()


def test_what_cannot_be_trimmed_is_refused_before_anything_goes(cache: AlienCache, tmp_path: Path) -> None:
    with refused(NO_MARKS):
        trim(cache, TrimOptions(Marks()), PinnedObjects())
    (tmp_path / "objects/00").mkdir(parents=True)
    with refused(NOT_A_CACHE):
        trimmed(AlienCache(tmp_path / "objects"))


@pytest.mark.parametrize(
    ("space", "used", "need"),
    [
        (Space(50, 1000, 100), 10, Need(50, 0)),
        (Space(80, 1000, 100), 10, Need()),
        (Space(80, 1000, 4), 10, Need(0, 6)),
        (Space(80, 1000, None), 10, Need()),
        (Space(80, 1000, 100), 501, Need(201, 0)),
        (Space(50, 1000, 4), 501, Need(201, 6)),
    ],
)
def test_marks(space: Space, used: int, need: Need) -> None:
    pairs = {"free_below": 60, "free_until": 100, "inodes_below": 5, "inodes_until": 10}
    marks = Marks.model_validate({**pairs, "used_above": 500, "used_until": 300})
    assert need_of(marks, space, used) == need


def test_two_trims_at_once_take_what_one_would(cache: AlienCache) -> None:
    for number in range(400):
        put(cache, number, days=1 + number / 100)
    program = (
        "import sys; from pathlib import Path\n"
        "from include.aliencache.cache import AlienCache\nfrom include.aliencache.contents import PinnedObjects\n"
        "from include.aliencache.trim import TrimOptions, trim\n"
        "from include.settings.caches import Marks, UseOfObjects\n"
        f"marks = Marks(used_above={399 * BLOCK}, used_until={200 * BLOCK})\n"
        "print(trim(AlienCache(Path(sys.argv[1])), TrimOptions(marks, UseOfObjects.ATIME), PinnedObjects()).removed)"
    )
    command = [sys.executable, "-c", program, cache.path]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    removed = [int(process.communicate()[0]) for process in both]
    left = len(list(cache.path.glob("??/*")))
    assert sum(removed) == 400 - left
    assert left == pytest.approx(200, abs=2)


def test_an_unknown_use_is_refused(cache: AlienCache, monkeypatch: pytest.MonkeyPatch) -> None:
    place = put(cache, 1, days=9)

    class NoAtime:
        f_flag = os.ST_NOATIME

    monkeypatch.setattr(os, "statvfs", lambda _: NoAtime)
    with refused(USE_UNKNOWN):
        trimmed(cache)
    assert place.exists()


def test_catalogs_first_takes_pinned_catalogs_too_and_waits_for_origins(
    cache: AlienCache, mini: MiniRepository
) -> None:
    warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    (cache.path / f"dirtab.{FQRN}").write_text("/\n")
    pins = pinned_objects(cache, [FQRN], lambda _: opened(mini.store), Pins(paths=("/readme",)))
    pins.origins_away.append(FQRN)
    with refused(PRELOADED):
        trimmed(cache, pins=pins, catalogs_first=True, hours=0)
    pins.origins_away.clear()
    report = trimmed(cache, pins=pins, catalogs_first=True, hours=0)
    assert report.catalogs_removed == 3
    left = {path.read_bytes()[:6] for path in cache.path.glob("??/*")}
    assert b"SQLite" not in left
    assert b"hello\n" in left


def test_objects_of_one_minute_are_the_same_for_all_who_trim(cache: AlienCache) -> None:
    for number in range(512):
        put(cache, number, days=2)
    program = (
        "import sys; from pathlib import Path\n"
        "from include.aliencache.cache import AlienCache\nfrom include.aliencache.contents import PinnedObjects\n"
        "from include.aliencache.trim import TrimOptions, trim\n"
        "from include.settings.caches import Marks, UseOfObjects\n"
        f"marks = Marks(used_above={511 * BLOCK}, used_until={256 * BLOCK})\n"
        "trim(AlienCache(Path(sys.argv[1])), TrimOptions(marks, UseOfObjects.ATIME), PinnedObjects())"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, cache.path]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list(cache.path.glob("??/*"))) == pytest.approx(256, abs=2)


def test_a_cache_without_an_inode_left_is_trimmed(cache: AlienCache, monkeypatch: pytest.MonkeyPatch) -> None:
    place, original = put(cache, 1, days=9), os.open

    def full(path: object, flags: int, *rest: int, **options: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return original(path, flags, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", full)
    assert trimmed(cache).removed == 1
    assert not place.exists()


def test_a_time_of_the_far_future_is_no_error(cache: AlienCache) -> None:
    place = put(cache, 1, days=9)
    os.utime(place, (2**33, 2**33))
    assert trimmed(cache, hours=-1e9).objects == 1


def test_an_object_without_a_time_goes_first(cache: AlienCache) -> None:
    first, second = put(cache, 1, days=9), put(cache, 2, days=1)
    os.utime(first, (0, 0))
    assert trimmed(cache, used_above=BLOCK, used_until=BLOCK).removed == 1
    assert (first.exists(), second.exists()) == (False, True)
