"""A collection and publications at the same time: nothing that is published lacks an object, whatever the order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.cvmfs.coordination.generation import STATUS_KEY
from include.cvmfs.errors import CHANGESET_EXPIRED, OBJECTS_COLLECTED, CollectionRunning, ObjectsLost
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG
from include.cvmfs.ingest.changeset import Changeset
from include.gateway.client.leases import Lease
from include.publishers.native import NativePublisher
from tests.fakes.collector import Collector
from tests.fakes.refused import refused
from tests.integration.conftest import AGAIN_ON_S3
from tests.site import DESTINATIONS, FQRN, NESTED, Deployment

pytestmark = AGAIN_ON_S3
NOW = datetime.now(UTC)
OLD, NEW = DESTINATIONS[0], DESTINATIONS[1]
SHARED = {"lib/shared.so": b"in both " * 400}


@pytest.fixture
def collector(site: Deployment) -> Collector:
    """Repository whose old revision holds a file that the current one does not need, see ``known_from``."""
    site.reserve()
    site.worker().publish(site.prepared(OLD, SHARED), holder="test", now=NOW)
    return site.collector()


def forget_the_old(site: Deployment) -> None:
    """From here on, the current revision does not need what the old destination held."""
    site.worker().publish(site.prepared(OLD, {"other": b"content"}), holder="test", now=NOW)


def published(site: Deployment, changeset: Changeset) -> None:
    site.worker().publish(changeset, holder="test", now=NOW)
    assert site.readers().revision.read(f"{NEW}/lib/shared.so") == SHARED["lib/shared.so"]
    site.assert_sound()


def test_a_collection_that_took_nothing_of_it_does_not_matter(site: Deployment, collector: Collector) -> None:
    # it began before the collection, and is named by no revision: only what it reuses is still preserved
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    collector.begin()
    collector.mark()
    collector.condemned = frozenset()
    collector.condemn()
    collector.sweep()
    collector.end()
    published(site, changeset)


def test_a_publication_waits_for_its_own_shards_of_the_sweep_only(site: Deployment, collector: Collector) -> None:
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    forget_the_old(site)
    collector.to_the_list()
    with pytest.raises(CollectionRunning) as waiting:
        site.worker().publish(changeset, holder="test", now=NOW)
    assert waiting.value.number == 1
    assert waiting.value.repository == FQRN
    (shard,) = waiting.value.shards
    collector.sweep_shards(shard)
    with pytest.raises(CollectionRunning):
        site.worker().publish(changeset, holder="test", now=NOW)
    collector.sweep_shards(shard + 1)
    with refused(OBJECTS_COLLECTED):
        site.worker().publish(changeset, holder="test", now=NOW)
    again = site.prepared(NEW, SHARED, known_from=[OLD])
    assert (again.generation, again.swept) == (0, shard + 1)
    assert shard < 255, "the collection is not at its end"
    published(site, again)
    collector.sweep_shards(256)
    collector.end()
    site.assert_sound()
    assert site.readers().revision.read(f"{NEW}/lib/shared.so") == SHARED["lib/shared.so"]


def test_what_was_sent_after_its_shard_was_swept_may_be_published_when_the_collection_has_ended(
    site: Deployment, collector: Collector
) -> None:
    forget_the_old(site)
    collector.to_the_list()
    collector.sweep_shards(256)
    again = site.prepared(NEW, SHARED, known_from=[OLD])
    assert again.swept == 256
    collector.end()
    published(site, again)


def test_what_was_sent_before_its_shard_was_swept_is_prepared_again(site: Deployment, collector: Collector) -> None:
    forget_the_old(site)
    collector.to_the_list()
    collector.sweep_shards(0)
    sent_too_early = site.prepared(NEW, SHARED, known_from=[OLD])
    collector.sweep_shards(256)
    with refused(OBJECTS_COLLECTED):
        site.worker().publish(sent_too_early, holder="test", now=NOW)
    published(site, site.prepared(NEW, SHARED, known_from=[OLD]))
    collector.end()
    site.assert_sound()


def test_a_change_that_was_rehearsed_before_its_shard_was_swept_is_stored_again(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of a catalog is an empty file; in a repository without any that object is nobody's."""
    site.reserve()
    site.worker().remove(NESTED[0], holder="test", now=NOW)
    collector = site.collector()
    collector.to_the_list()
    worker = site.worker()
    rehearsed, rehearsals = worker._rehearsed, []

    def then_swept(*arguments: object) -> object:
        found = rehearsed(*arguments)  # type: ignore[arg-type]
        rehearsals.append(found)
        if len(rehearsals) == 1:
            collector.sweep_shards(256)
            collector.end()
        return found

    monkeypatch.setattr(worker, "_rehearsed", then_swept)
    entry = Dirent("", 0o40755, size=4096, linkcount=2)
    worker.change("/again", lambda edit: edit.make_nested("/again", entry), holder="test", now=NOW)
    assert len(rehearsals) == 2
    site.assert_sound()


def test_what_is_committed_before_the_list_is_out_is_taken_off_it(site: Deployment, collector: Collector) -> None:
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    forget_the_old(site)
    collector.begin()
    collector.mark()
    published(site, changeset)
    collector.condemn()
    collector.sweep()
    collector.end()
    site.assert_sound()
    assert site.readers().revision.read(f"{NEW}/lib/shared.so") == SHARED["lib/shared.so"]


def test_a_commit_cannot_slip_past_the_barrier(site: Deployment, collector: Collector) -> None:
    """The publisher looked, found all well, and stood still: by now the collector is further."""
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    forget_the_old(site)
    collector.begin()
    collector.mark()
    worker = site.worker()
    commits: list[str] = []

    class Late(type(worker._client)):  # type: ignore[misc]
        def commit(self, lease: Lease, *roots: object, generation: str, **more: object) -> int:
            if not commits:
                collector.condemn()
                collector.sweep()
            commits.append(generation)
            return super().commit(lease, *roots, generation=generation, **more)

    worker._client.__class__ = Late
    before = site.head().manifest.revision
    with pytest.raises(CollectionRunning):
        worker.publish(changeset, holder="test", now=NOW)
    assert commits == ["1:marking"]
    assert site.head().manifest.revision == before
    collector.end()
    published(site, site.prepared(NEW, SHARED, known_from=[OLD]))


def crossing(worker: NativePublisher, collector: Collector, *, times: int = 1) -> list[str]:
    """Let the worker's next commits be crossed by the publication of a list; the generations of all its commits."""
    commits: list[str] = []

    class Crossed(type(worker._client)):  # type: ignore[misc]
        def commit(self, lease: Lease, *roots: object, generation: str, **more: object) -> int:
            commits.append(generation)
            if len(commits) <= times:
                collector.begin()
                collector.mark()
                collector.condemned = frozenset()
                collector.condemn()
                if len(commits) < times:
                    collector.sweep()
                    collector.end()
            return super().commit(lease, *roots, generation=generation, **more)

    worker._client.__class__ = Crossed
    return commits


@pytest.mark.parametrize(
    ("change", "times"), [("reserve", 1), ("publish", 3), ("remove", 1), ("change", 1), ("release", 1)]
)
def test_every_change_that_a_collection_crosses_is_looked_at_again(site: Deployment, change: str, times: int) -> None:
    site.reserve()
    changeset = site.prepared(NEW, {"f": b"content"})
    worker, collector = site.worker(), site.collector()
    commits = crossing(worker, collector, times=times)
    who = {"holder": "test", "now": NOW}
    entry = Dirent("", 0o40755, size=4096, linkcount=2)
    before = site.head().manifest.revision
    match change:
        case "reserve":
            worker.reserve(["/made/by/this"], nested=[], **who)
        case "publish":
            worker.publish(changeset, **who)
        case "remove":
            worker.remove(OLD, **who)
        case "change":
            worker.change("/again", lambda edit: edit.add("/again", entry), **who)
        case _:
            assert worker.release([OLD], floor=None, **who).removed == (OLD,)
    assert site.head().manifest.revision == before + 1
    assert len(commits) == times + 1
    site.assert_sound()


def test_a_changeset_that_missed_more_collections_than_are_remembered_is_prepared_again(
    site: Deployment, collector: Collector
) -> None:
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    collector.run()
    collector.now = NOW + timedelta(days=3)
    collector.run()
    with refused(OBJECTS_COLLECTED):
        site.worker().publish(changeset, holder="test", now=NOW)


def test_a_reservation_waits_for_the_collection_that_condemned_what_it_needs(site: Deployment) -> None:
    """The marker of a catalog is an empty file; in a repository without any that object is nobody's."""
    site.reserve()
    site.worker().remove(NESTED[0], holder="test", now=NOW)
    collector = site.collector()
    collector.to_the_list()
    with pytest.raises(CollectionRunning):
        site.reserve()
    collector.sweep_shards(256)  # what is stored now comes after its shard was swept
    site.reserve()
    collector.end()
    site.assert_sound()


def test_on_a_stock_repository_the_last_collections_time_plays_the_generations_part(site: Deployment) -> None:
    site.reserve()
    site.worker().publish(site.prepared(OLD, SHARED), holder="test", now=NOW)
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    site.store.put(STATUS_KEY, b'{"last_gc": "Sat Nov 21 04:00:00 UTC 2026"}')
    with refused(OBJECTS_COLLECTED):
        site.worker().publish(changeset, holder="test", now=NOW)
    published(site, site.prepared(NEW, SHARED, known_from=[OLD]))


def test_a_changeset_lives_for_a_day(site: Deployment, collector: Collector) -> None:
    changeset = site.prepared(NEW, SHARED, known_from=[OLD])
    with refused(CHANGESET_EXPIRED):
        site.worker().publish(replace(changeset, created=NOW - timedelta(hours=25)), holder="test", now=NOW)
    published(site, replace(changeset, created=NOW - timedelta(hours=23)))
    # what stands already needs no objects, however old the changeset is
    late = replace(changeset, created=NOW - timedelta(hours=25))
    assert site.worker().publish(late, holder="test", now=NOW).unchanged


def test_a_lost_nested_catalog_is_found_before_anything_is_published(site: Deployment) -> None:
    site.reserve()
    files = {f"{part}/.cvmfscatalog": b"" for part in ("a", "a/b", "a/b/c", "d")} | SHARED
    changeset = site.prepared(NEW, files)
    nested = site.worker()
    (lost,) = [one.hash for one in _catalogs(site, changeset) if one.path == f"{NEW}/a/b/c"]
    site.store.delete([lost.with_suffix(CATALOG).key])
    with pytest.raises(ObjectsLost) as caught:
        nested.publish(changeset, holder="test", now=NOW)
    assert caught.value.keys == (lost.with_suffix(CATALOG).key,)
    published(site, site.prepared(NEW, files))


def _catalogs(site: Deployment, changeset: Changeset) -> list:  # type: ignore[type-arg]
    from include.cvmfs.format.catalogs import CatalogCache

    found, pending, cache = [], [changeset.reference], CatalogCache(site.store)
    while pending:
        one = pending.pop()
        found.append(one)
        pending.extend(cache.open_nested(one.path, one.hash).nested())
    return found
