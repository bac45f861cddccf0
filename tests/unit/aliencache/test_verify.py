"""Damaged objects are found by what a level can see; no good one is condemned."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from include.aliencache.cache import AlienCache
from include.aliencache.contents import Wanted
from include.aliencache.names import place_of
from include.aliencache.verify import Level, VerifyOptions, VerifyReport, expected_of, verify
from include.aliencache.warm import WarmOptions, warm
from include.cvmfs.format.objects import Compression
from include.storage.file import FileStore
from tests.fakes.minirepo import FQRN, MiniRepository, opened


@pytest.fixture
def warmed(cache: AlienCache, mini: MiniRepository) -> AlienCache:
    warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    return cache


def verified(cache: AlienCache, mini: MiniRepository, level: Level, **options: object) -> VerifyReport:
    notes: list[str] = []
    expected = expected_of({FQRN: opened(mini.store)}, notes)
    return verify(cache, expected, [mini.store], VerifyOptions(level, **options))  # type: ignore[arg-type]


def place(cache: AlienCache, mini: MiniRepository, path: str) -> Path:
    return cache.path / place_of(mini.entries[path].hash)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", list(Level))
def test_a_sound_cache_has_nothing_damaged(warmed: AlienCache, mini: MiniRepository, level: Level) -> None:
    report = verified(warmed, mini, level)
    assert report.damaged_count == 0
    assert report.good + report.not_judged == report.objects == len(list(warmed.path.glob("??/*")))
    if level is Level.FETCH:
        assert report.not_judged == 0


@pytest.mark.parametrize(
    ("level", "path", "content", "found"),
    [
        (Level.SIZE, "/readme", b"hel", True),
        (Level.SIZE, "/readme", b"", True),
        (Level.SIZE, "/readme", b"\0" * 6, False),
        (Level.NAME, "/sw/plain", b"\0" * 15, True),
        (Level.NAME, "/readme", b"\0" * 6, False),
        (Level.SUM, "/readme", b"\0" * 6, True),
        (Level.FETCH, "/readme", b"jello\n", True),
        (Level.FETCH, "/sw/plain", b"stored as it iz", True),
    ],
)
def test_damage(warmed: AlienCache, mini: MiniRepository, level: Level, path: str, content: bytes, found: bool) -> None:
    damaged = place(warmed, mini, path)
    damaged.write_bytes(content)
    report = verified(warmed, mini, level)
    assert (report.damaged_count, damaged.exists()) == (int(found), not found)
    if found:
        name = damaged.parent.name + damaged.name
        assert report.damaged == [f"{damaged.parent.name}/{damaged.name}"]
        assert (warmed.path / "quarantaine" / name).read_bytes() == content
        assert warm(warmed, opened(mini.store), [mini.store], WarmOptions(Wanted())).fetched == 1


@pytest.mark.slow
def test_of_a_thousand_damages_each_level_finds_what_it_can_see_and_condemns_no_good_one(
    cache: AlienCache, tmp_path: Path
) -> None:
    draw = random.Random(1)
    contents = [draw.randbytes(100 + number // 100) for number in range(1200)]
    mini = MiniRepository(FileStore(tmp_path / "many"))
    mini.directory("/set")
    for number, content in enumerate(contents):
        mini.file(f"/set/{number}", content, (Compression.NONE, Compression.ZLIB)[number % 2])
    mini.build().publish()
    warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    sizes, hidden = set[str](), dict[bool, set[str]]({False: set(), True: set()})
    for turn, number in enumerate(draw.sample(range(1200), 1000)):
        right, other = contents[number], contents[number ^ 1]
        file = place(cache, mini, f"/set/{number}")
        file.write_bytes((right[:50], b"", bytes(len(right)), other)[turn % 4])
        (sizes if turn % 4 < 2 else hidden[number % 2 == 0]).add(f"{file.parent.name}/{file.name}")
    everything = sizes | hidden[True] | hidden[False]
    assert len(everything) == 1000
    for level, visible in (
        (Level.SIZE, sizes), (Level.NAME, sizes | hidden[True]), (Level.SUM, everything), (Level.FETCH, everything),
    ):  # fmt: skip
        report = verified(cache, mini, level, dry_run=True)
        assert (report.damaged_count, set(report.damaged)) == (len(visible), visible), level
        assert report.good + report.not_judged + report.damaged_count == report.objects
        if level is Level.NAME:
            assert report.not_judged >= len(hidden[False])


def test_by_another_compressor_a_good_object_has_another_hash_and_stays(
    warmed: AlienCache, mini: MiniRepository
) -> None:
    for file in (warmed.path / ".nightshift/sums").iterdir():
        file.unlink()
    report = verified(warmed, mini, Level.SUM)
    assert (report.damaged_count, report.not_judged > 0) == (0, True)


def test_without_origins_sizes_are_not_judged_and_nothing_goes(warmed: AlienCache) -> None:
    notes: list[str] = []
    report = verify(warmed, expected_of({FQRN: None}, notes), [], VerifyOptions(Level.FETCH))
    assert (report.damaged_count, len(notes)) == (0, 1)
    assert len(list(warmed.path.glob("??/*"))) == report.objects


def test_a_dry_run_and_deletion(warmed: AlienCache, mini: MiniRepository) -> None:
    damaged = place(warmed, mini, "/readme")
    damaged.write_bytes(b"")
    assert verified(warmed, mini, Level.SIZE, dry_run=True).damaged_count == 1
    assert damaged.exists()
    assert verified(warmed, mini, Level.SIZE, delete=True).damaged_count == 1
    assert not damaged.exists()
    assert list((warmed.path / "quarantaine").iterdir()) == []


def test_shares_together_are_all(warmed: AlienCache, mini: MiniRepository) -> None:
    parts = [verified(warmed, mini, Level.SIZE, share=7, part=part).objects for part in range(7)]
    assert sum(parts) == verified(warmed, mini, Level.SIZE).objects


def test_a_truncated_catalog_is_found(warmed: AlienCache, mini: MiniRepository) -> None:
    root = warmed.path / place_of(mini.manifest.root)  # type: ignore[union-attr]
    root.write_bytes(root.read_bytes()[:1000])
    assert verified(warmed, mini, Level.SIZE).damaged_count == 1


def test_damage_is_taken_away_where_the_folder_for_it_is_missing(warmed: AlienCache, mini: MiniRepository) -> None:
    (warmed.path / "quarantaine").rmdir()
    damaged = place(warmed, mini, "/readme")
    damaged.write_bytes(b"hel")
    assert verified(warmed, mini, Level.SIZE).damaged_count == 1
    assert not damaged.exists()


def test_an_empty_certificate_is_damage_and_is_fetched_again(warmed: AlienCache, mini: MiniRepository) -> None:
    certificate = warmed.path / place_of(mini.manifest.certificate)  # type: ignore[union-attr,arg-type]
    certificate.write_bytes(b"")
    warm(warmed, opened(mini.store), [mini.store], WarmOptions(Wanted()))
    assert certificate.stat().st_size
    certificate.write_bytes(b"")
    assert verified(warmed, mini, Level.SIZE).damaged_count == 1
