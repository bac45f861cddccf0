"""A warm brings what is wanted, verified, once; whatever the origins send."""

from __future__ import annotations

import os
import threading

import pytest

from include.aliencache.cache import AlienCache
from include.aliencache.contents import Wanted
from include.aliencache.errors import CACHE_FULL, NOTHING_WANTED, ORIGIN_FAILED, REVISION_GONE
from include.aliencache.names import Breadcrumb, place_of
from include.aliencache.warm import WarmOptions, WarmProgress, WarmReport, open_origin, warm
from include.cvmfs.format.database import Tag
from include.cvmfs.format.manifest import Manifest
from include.storage.store import Store
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, SECONDS, MiniRepository, opened, sample
from tests.fakes.refused import refused


def warmed(cache: AlienCache, *origins: Store, wanted: Wanted | None = None, **options: object) -> WarmReport:
    repository = opened(origins[0])
    return warm(cache, repository, origins, WarmOptions(wanted or Wanted(), **options))  # type: ignore[arg-type]


def files(cache: AlienCache) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in cache.path.glob("??/*")}


def clean(cache: AlienCache) -> bool:
    left = [*(cache.path / "txn").iterdir(), *(cache.path / ".nightshift/claims").iterdir()]
    return left == []


def test_a_cache_gets_all_that_a_client_mounts_and_reads(cache: AlienCache, mini: MiniRepository) -> None:
    seen: list[WarmProgress] = []
    report = warm(cache, opened(mini.store), [mini.store], WarmOptions(Wanted()), progress=seen.append)
    there = files(cache)
    for path, content in {
        "/readme": b"hello\n",
        "/sw/plain": b"stored as it is",
        "/sw/app/lib/deep/data": b"deep data",
    }.items():
        assert there[place_of(mini.entries[path].hash)] == content  # type: ignore[arg-type]
    for chunk, content in zip(mini.pieces["/sw/app/big"], (b"a" * 1000, b"b" * 500, b"c" * 700), strict=True):
        assert there[place_of(chunk.hash)] == content
    manifest = mini.manifest
    assert isinstance(manifest, Manifest)
    assert manifest.certificate
    assert manifest.meta
    assert there[place_of(manifest.root)] == mini.databases[""]
    assert place_of(manifest.certificate) in there
    assert place_of(manifest.meta) in there
    assert cache.breadcrumbs() == {FQRN: Breadcrumb(manifest.root.with_suffix(""), SECONDS)}
    assert {path.stat().st_mode & 0o777 for path in cache.path.glob("??/*")} == {0o660}
    assert (report.fetched, report.present, report.catalogs, report.breadcrumb) == (report.objects, 0, 3, True)
    assert seen[-1].objects == seen[-1].objects_total == report.objects
    assert clean(cache)
    assert list((cache.path / ".nightshift/catalogs").iterdir()) == []


def test_a_second_warm_fetches_nothing_but_what_is_missing_or_of_another_size(
    cache: AlienCache, mini: MiniRepository
) -> None:
    warmed(cache, mini.store)
    before = files(cache)
    again = warmed(cache, mini.store)
    assert (again.fetched, again.catalogs, again.breadcrumb) == (0, 0, False)
    (cache.path / place_of(mini.entries["/readme"].hash)).write_bytes(b"hel")  # type: ignore[arg-type]
    (cache.path / place_of(mini.entries["/sw/app/run"].hash)).unlink()  # type: ignore[arg-type]
    (cache.path / place_of(mini.manifest.root)).write_bytes(b"")  # type: ignore[union-attr]
    third = warmed(cache, mini.store)
    assert (third.fetched, third.replaced, third.catalogs) == (2, 1, 1)
    assert files(cache) == before


def test_a_dry_run_changes_nothing(cache: AlienCache, mini: MiniRepository) -> None:
    report = warmed(cache, mini.store, dry_run=True)
    assert report.fetched == report.objects > 0
    assert files(cache) == {}
    assert cache.breadcrumbs() == {}


def test_what_an_origin_sends_wrong_comes_from_the_next_and_never_into_the_cache(
    cache: AlienCache, mini: MiniRepository
) -> None:
    good = MemoryStore()
    sample(good).publish()
    name = mini.entries["/readme"].hash
    assert name is not None
    mini.store.put(name.key, b"<html>Service unavailable</html>")
    report = warmed(cache, mini.store, good)
    assert report.fetched == report.objects
    assert files(cache)[place_of(name)] == b"hello\n"
    good.put(name.key, b"of the right length, wrong bytes")
    (cache.path / place_of(name)).unlink()
    with refused(ORIGIN_FAILED) as fault:
        warmed(cache, mini.store, good)
    assert fault.value.retryable
    assert place_of(name) not in files(cache)
    assert clean(cache)


def test_a_revision_that_was_collected_meanwhile_is_named(cache: AlienCache, mini: MiniRepository) -> None:
    old = opened(mini.store)
    newer = MiniRepository(mini.store)
    newer.file("/new", b"new")
    newer.build().publish(revision=2)
    mini.store.delete([mini.entries["/readme"].hash.key])  # type: ignore[union-attr]
    with refused(REVISION_GONE):
        warm(cache, old, [mini.store], WarmOptions(Wanted()))
    assert cache.breadcrumbs() == {}


def test_what_names_nothing_is_refused(cache: AlienCache, mini: MiniRepository) -> None:
    with refused(NOTHING_WANTED):
        warmed(cache, mini.store, wanted=Wanted(["/absent"]))


def test_a_tag_leaves_the_breadcrumb_alone(cache: AlienCache, store: MemoryStore) -> None:
    mini = sample(store)
    root = mini.store_catalogs()
    mini.publish(tags=[Tag("good", root.hash, 1, SECONDS, root.size)])
    report = warmed(cache, store, tag="good")
    assert (report.fetched, report.breadcrumb, cache.breadcrumbs()) == (report.objects, False, {})


def test_in_a_preloaded_cache_no_catalog_promises_what_is_not_below_it(cache: AlienCache, mini: MiniRepository) -> None:
    (cache.path / f"dirtab.{FQRN}").write_text("/sw/*\n")
    report = warmed(cache, mini.store, wanted=Wanted(["/sw/app/lib"]))
    assert (report.catalogs, cache.breadcrumbs()) == (1, {})  # that of /sw/app/lib/deep alone is whole


def test_a_full_file_system_is_said_and_leaves_no_temporary_file(
    cache: AlienCache, mini: MiniRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with refused(CACHE_FULL):
        warmed(cache, mini.store)
    monkeypatch.undo()
    assert files(cache) == {}
    assert clean(cache)


def test_four_warmers_fetch_each_object_once(cache: AlienCache, mini: MiniRepository) -> None:
    asked: list[str] = []
    lock = threading.Lock()

    class Counted(MemoryStore):
        def stream(self, key: str, *, block: int = 1 << 20):  # type: ignore[no-untyped-def]
            with lock:
                asked.append(key)
            return super().stream(key, block=block)

    counted = Counted()
    sample(counted).publish()
    reports: list[WarmReport] = []
    threads = [threading.Thread(target=lambda: reports.append(warmed(cache, counted))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == len(set(asked))
    assert sum(report.fetched for report in reports) == reports[0].objects
    assert [report.present + report.fetched for report in reports] == [reports[0].objects] * 4


def test_a_wanted_object_is_renewed_where_use_is_known_by_the_record(cache: AlienCache, mini: MiniRepository) -> None:
    warmed(cache, mini.store)
    place = cache.path / place_of(mini.entries["/readme"].hash)  # type: ignore[arg-type]
    os.utime(place, (1000, 1000))
    warmed(cache, mini.store)
    assert place.stat().st_mtime == 1000
    warmed(cache, mini.store, renew=True)
    assert place.stat().st_mtime > 1000


def test_the_first_origin_that_can_be_trusted_is_opened(mini: MiniRepository) -> None:
    empty = MemoryStore()
    assert open_origin(FQRN, [empty, mini.store], opened).store is mini.store
    with refused(ORIGIN_FAILED):
        open_origin(FQRN, [empty], opened)


def test_catalogs_alone_promise_nothing_in_a_preloaded_cache(cache: AlienCache, mini: MiniRepository) -> None:
    (cache.path / f"dirtab.{FQRN}").write_text("/\n")
    report = warmed(cache, mini.store, wanted=Wanted(catalogs_only=True))
    assert (report.catalogs, cache.breadcrumbs()) == (0, {})


def test_sums_of_a_warm_that_failed_are_noted_and_nothing_is_left_staged(
    cache: AlienCache, mini: MiniRepository
) -> None:
    name = mini.entries["/readme"].hash
    assert name is not None
    good = mini.store.get(name.key)
    mini.store.put(name.key, b"wrong")
    with refused(ORIGIN_FAILED):
        warmed(cache, mini.store)
    mini.store.put(name.key, good)
    warmed(cache, mini.store)
    texts = [file.read_text() for file in (cache.path / ".nightshift/sums").iterdir()]
    noted = {line.split()[0] for text in texts for line in text.splitlines()}
    compressed = [entry.hash for path, entry in mini.entries.items() if entry.hash and path != "/sw/plain"]
    assert {str(one) for one in compressed} <= noted
    assert list((cache.path / ".nightshift/catalogs").iterdir()) == []
