"""Collections beside commits that are stopped: what such a commit left in the reflog for a while is no revision."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import CollectionRules, read_record
from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.commit.metadata_objects import REFLOG_KEY
from include.cvmfs.commit.repair import repair_reflog
from include.cvmfs.errors import CollectionRefused, CommitError, GenerationMoved
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import hash_bytes
from tests.fakes.collecting import ALL_ORPHANS, FQRN, Place, run, signer
from tests.fakes.refused import refused

AT_ONCE = CollectionRules(grace=timedelta(), careful=False)


def crossed(place: Place, until: SwitchStep, collect: Callable[[GarbageCollection], object]) -> None:
    """A commit that ``collect`` crosses at a step, and stops."""
    publisher = place.publisher()
    judged = publisher.judge(publisher.prepare("/b", {"f": b"stopped"}))

    def cross(step: SwitchStep) -> None:
        if step is until:
            with place.collection(ALL_ORPHANS) as collection:
                collection.begin()
                collect(collection)

    with refused(GenerationMoved):
        publisher.commit(judged, cross)


def an_orphan(place: Place) -> None:
    """Something that a collection deletes without pruning the reflog."""
    place.publish("/a", {"f": b"old"})
    place.keep(b"orphan")
    place.pass_time(days=2, hours=1)


def assert_in_order(place: Place) -> None:
    """The manifest names the reflog that is stored, and the record only revisions."""
    named = place.manifest().reflog
    assert named is not None
    assert hash_bytes(place.store.objects[REFLOG_KEY]).digest == named.digest
    assert place.problems() == []


@pytest.mark.parametrize("step", [SwitchStep.HISTORY_STORED, SwitchStep.REFLOG_WRITTEN, SwitchStep.BEFORE_SWITCH])
@pytest.mark.parametrize("garbage", [Place.garbage, an_orphan])
def test_a_collection_that_stops_a_commit_is_followed(
    place: Place, step: SwitchStep, garbage: Callable[[Place], object]
) -> None:
    garbage(place)
    crossed(place, step, lambda collection: run(collection, "mark", "end"))
    assert_in_order(place)
    for _ in range(3):
        assert place.collect().ok
        place.publish("/b", {"f": b"again"})
    assert_in_order(place)


def test_the_reflog_that_a_fence_went_on_from_is_not_put_back(place: Place) -> None:
    an_orphan(place)
    crossed(place, SwitchStep.REFLOG_WRITTEN, lambda collection: run(collection, "mark", "spare"))
    assert_in_order(place)


def test_a_revision_lost_from_the_reflog_is_missed(place: Place) -> None:
    lost = place.publish("/a", {"f": b"old"}).root
    for _ in range(3):
        place.supersede()
    place.collect()
    reflog = Reflog.load(place.store.objects[REFLOG_KEY])
    reflog.remove_all([lost])
    place.store.objects[REFLOG_KEY] = reflog.to_bytes()
    with refused(CollectionRefused, fqrn=FQRN) as caught:
        place.collect()
    assert f"1 roots that the last collection kept are in no reflog and no tag, as {lost}" in str(caught.value)
    assert "--accept" in caught.value.hint
    repair_reflog(place.store, FQRN, signer=signer(), now=place.seconds)
    place.pass_time(hours=1)
    assert place.collect().ok


@pytest.mark.parametrize("garbage", [Place.garbage, an_orphan])
def test_a_reflog_of_after_the_fence_is_put_back(place: Place, garbage: Callable[[Place], object]) -> None:
    garbage(place)
    publisher = place.publisher()
    judged = publisher.judge(publisher.prepare("/b", {"f": b"stopped"}))
    with place.collection(ALL_ORPHANS) as collection:
        run(collection, "begin", "condemn")
        collection._fence()
        collection._fence = lambda: None

        def cross(step: SwitchStep) -> None:
            if step is SwitchStep.REFLOG_WRITTEN:
                collection.spare()

        with refused(GenerationMoved):
            publisher.commit(judged, cross)
        run(collection, "sweep", "end")
    assert_in_order(place)
    assert judged.new not in read_record(place.store)[0].roots
    assert place.collect().ok


def test_after_an_older_manifest_was_put_back_a_collection_is_refused(place: Place) -> None:
    place.publish("/a", {"f": b"old"})
    before = dict(place.store.objects)
    lost = place.publish("/a", {"f": b"new"}).root
    place.supersede()
    place.collect()
    place.store.objects |= {key: data for key, data in before.items() if key.startswith(".cvmfs")}
    assert lost in read_record(place.store)[0].roots
    with refused(CollectionRefused, fqrn=FQRN) as caught:
        place.collect()
    assert "2 roots that the last collection kept are in no reflog" in str(caught.value)


def test_what_a_stopped_commit_names_and_a_sweep_took_does_not_refuse_a_collection(place: Place) -> None:
    """Its root stays in the reflog for the grace, since another writer went on from that reflog."""
    place.garbage()
    publisher = place.publisher()
    judged = publisher.judge(publisher.prepare("/b", {"f": b"stopped"}))
    with place.collection() as collection:
        run(collection, "begin", "sweep")

        def end(step: SwitchStep) -> None:
            if step is SwitchStep.REFLOG_WRITTEN:
                collection.end()

        with refused(GenerationMoved):
            publisher.commit(judged, end)
    place.store.delete([judged.new.key])
    place.pass_time(hours=1)
    assert place.collect(ALL_ORPHANS).ok
    assert place.problems() == []


@pytest.mark.parametrize("seed", range(4))
def test_collections_beside_commits_in_any_order_are_never_refused(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    stopped = 0
    for number in range(12):
        publisher = place.publisher()
        judged = publisher.judge(publisher.prepare(f"/p{number % 2}", {"f": b"%d" % number}))
        steps = chance.sample(list(SwitchStep)[:-1], 2)
        waiting = iter(chance.choice([(2, 3), (5,), (4, 1)]))
        collection = place.collection(AT_ONCE)
        going = parts(collection)

        def cross(step: SwitchStep) -> None:
            if step in steps:  # noqa: B023 - called in this turn
                for _ in range(next(waiting, 0)):  # noqa: B023
                    next(going, None)  # noqa: B023

        try:
            publisher.commit(judged, cross)
        except CommitError:
            stopped += 1
        for _ in going:
            pass
        place.pass_time(seconds=2)
    assert stopped
    assert place.collect(AT_ONCE).ok
    assert place.problems() == []


def parts(collection: GarbageCollection):
    """The steps of a collection, to be made one by one."""
    with collection:
        collection.begin()
        yield
        collection.mark()
        yield
        if collection.condemn():
            yield
            collection.spare()
            yield
            collection.sweep()
            yield
        collection.end()
