"""A collection stops for another one, at its death, with nothing to do, and for impossible states."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import KEY as RECORD_KEY, SETTLE, CollectionRules, read_record
from include.cvmfs.collect.sweep import is_dead, process_name
from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.commit.metadata_objects import REFLOG_KEY
from include.cvmfs.commit.repair import repair_reflog
from include.cvmfs.coordination.condemned import read_list
from include.cvmfs.coordination.generation import TAKEOVER, CollectionPhase, look, write
from include.cvmfs.errors import CollectionBusy, CollectionRefused, CommitError, FormatError, GenerationMoved
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.manifest import Manifest
from include.storage.errors import Forbidden
from tests.fakes.collecting import ALL_ORPHANS, FQRN, Place, run, signer
from tests.fakes.memorystore import MEMORY
from tests.fakes.refused import refused

# -- two collectors, and death


def test_a_second_collector_leaves_until_the_first_counts_as_dead(place: Place) -> None:
    with place.collection() as first:
        first.begin()
        with refused(CollectionBusy, fqrn=FQRN) as caught, place.collection() as second:
            second.begin()
        assert caught.value.until == place.now + TAKEOVER
        place.pass_time(hours=1)
        with place.collection() as second:
            assert second.begin()
            assert second.report.number == 2
        with refused(CollectionBusy, fqrn=FQRN):
            first.mark()
            place.garbage()
            run(first, "condemn", "spare")


@pytest.mark.usefixtures("old")
def test_one_that_died_in_its_sweep_is_finished_by_its_own_list(place: Place) -> None:
    with place.collection(ALL_ORPHANS) as first:
        run(first, "begin", "spare")
        name = look(place.store).running_list
    doomed = {one.key for one in read_list(place.store, str(name))}
    place.pass_time(hours=2)
    report = place.collect(ALL_ORPHANS)
    assert report.resumed
    assert report.deleted == len(doomed)
    assert not doomed & place.objects()
    assert place.collect(ALL_ORPHANS).ok
    assert place.problems() == []


@pytest.fixture
def ended() -> str:
    """The name of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = process_name(process.pid)
        assert name is not None
        assert not is_dead(name)
    assert is_dead(name)
    return name


def begun_by(place: Place, collector: str | None) -> None:
    """A collection that another process has in its sweep."""
    place.garbage()
    with place.collection(ALL_ORPHANS) as first:
        run(first, "begin", "spare")
    state = look(place.store)
    assert state.generation is not None
    write(place.store, replace(state.generation, collector=collector), expected=state.version)


def test_a_collector_of_this_machine_that_ended_is_followed_at_once(place: Place, ended: str) -> None:
    begun_by(place, ended)
    report = place.collect(ALL_ORPHANS)
    assert report.resumed
    assert report.deleted
    assert look(place.store).generation.collector is None
    assert place.collect(ALL_ORPHANS).ok


@pytest.mark.parametrize("who", ["alive", "of another machine", "of another container", "unknown", "not ours to read"])
def test_a_collector_that_may_live_is_waited_for(place: Place, ended: str, who: str) -> None:
    boot, space, number, start = ended.split(":")
    begun_by(place, {
        "alive": process_name(os.getpid()), "of another machine": f"another-boot:{space}:{number}:{start}",
        "of another container": f"{boot}:1{space}:{number}:{start}", "unknown": None, "not ours to read": "x",
    }[who])  # fmt: skip
    with refused(CollectionBusy, fqrn=FQRN):
        place.collect(ALL_ORPHANS)
    place.pass_time(seconds=TAKEOVER.total_seconds())
    assert place.collect(ALL_ORPHANS).resumed


def test_a_process_that_has_the_number_of_one_that_ended_is_another(ended: str) -> None:
    boot, space, _, _ = ended.split(":")
    assert is_dead(f"{boot}:{space}:{os.getpid()}:0")


def test_after_a_takeover_requests_are_let_settle(place: Place, ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a network a request outlives the process that sent it."""
    begun_by(place, ended)
    monkeypatch.setattr(type(place.store), "kind", replace(MEMORY, is_local=False))
    waited: list[float] = []
    swept: list[int] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        swept.append(look(place.store).swept)

    assert place.collect(replace(ALL_ORPHANS, wait=wait)).resumed
    assert sum(waited) == pytest.approx(SETTLE.total_seconds(), abs=30)
    assert set(swept) == {0}


def test_one_that_awakes_after_another_took_over_deletes_nothing_more(place: Place, old: Manifest) -> None:
    with place.collection(ALL_ORPHANS) as first:
        run(first, "begin", "spare")
        place.pass_time(hours=2)
        place.collect(ALL_ORPHANS)
        place.publish("/b", {"f": b"old"})  # sent again after the sweep
        place.pass_time(hours=1)
        with refused(CollectionBusy, fqrn=FQRN):
            first.sweep()
    assert place.problems() == []


def test_a_collector_that_stopped_at_its_beginning_names_no_roots_as_vanished(place: Place) -> None:
    place.publish("/a", {"f": b"old"})
    place.publish("/a", {"f": b"new"})
    place.collect(ALL_ORPHANS)
    with place.collection(ALL_ORPHANS) as first:
        first.begin()
        place.supersede()
        place.pass_time(days=4)
        place.collect(ALL_ORPHANS)  # another took over, and prunes the reflog
        place.pass_time(hours=1)
        with refused(CollectionBusy, fqrn=FQRN):
            first.mark()


@pytest.mark.usefixtures("old")
def test_a_sweep_that_fails_leaves_no_thread_behind(place: Place) -> None:

    class Dead(BaseException): ...

    def die(verb: str, key: str) -> None:
        if verb == "delete":
            raise Dead

    with place.collection() as collection:
        run(collection, "begin", "spare")
        place.store.before = die
        with pytest.raises(Dead) as caught:
            collection.sweep()
    assert caught.tb is not None, "the frames of the sweep are still there"
    assert not [one.name for one in threading.enumerate() if one.name.startswith(("lists", "sweep", "renew"))]


# -- skipping


def test_a_collection_that_can_delete_nothing_says_when_it_can(place: Place) -> None:
    place.publish("/a", {"f": b"old"})
    with place.collection() as collection:
        assert collection.not_due() is None, "there was none yet"
    place.collect()
    due = place.now + timedelta(hours=20)
    place.pass_time(hours=1)
    place.publish("/a", {"f": b"new"})
    place.supersede()
    with place.collection() as collection:
        skipped = collection.not_due()
    assert skipped is not None
    assert skipped.due == due, "when names are listed next"
    place.pass_time(hours=20)
    with place.collection() as collection:
        assert collection.not_due() is None


def test_what_becomes_superseded_is_due_after_its_grace(place: Place) -> None:
    rules = CollectionRules(careful=False, grace=timedelta(hours=2))
    place.publish("/a", {"f": b"old"})
    place.collect(rules)
    place.pass_time(hours=1)
    place.publish("/a", {"f": b"new"})
    place.supersede()
    with place.collection(rules) as collection:
        skipped = collection.not_due()
    assert skipped is not None
    assert skipped.due <= place.now + timedelta(hours=2)
    place.pass_time(hours=2, seconds=1)
    with place.collection(rules) as collection:
        assert collection.not_due() is None


# -- brakes


def big(place: Place, count: int = 1200) -> None:
    place.publish("/big", {f"f{number}": b"%d" % number for number in range(count)})


def test_a_collection_that_would_keep_much_less_than_before_is_refused(place: Place) -> None:
    big(place)
    place.collect()
    place.remove("/big")
    place.supersede()
    place.pass_time(days=4)
    before = place.objects()
    with refused(CollectionRefused, fqrn=FQRN):
        place.collect()
    assert place.objects() == before
    place.pass_time(hours=1)
    report = place.collect(CollectionRules(careful=False, accept="the release was withdrawn"))
    assert report.deleted > 1000
    assert any("the release was withdrawn" in note for note in report.notes)


@pytest.mark.parametrize("data", [None, b"", b"not a database"])
def test_a_reflog_that_is_missing_or_damaged_is_rebuilt_with_a_note(place: Place, data: bytes | None) -> None:
    place.publish("/a", {"f": b"x"})
    place.publish("/b", {"f": b"y"})
    before = place.contents()
    if data is None:
        place.store.delete([REFLOG_KEY])
    else:
        place.store.put(REFLOG_KEY, data)
    place.pass_time(days=5)
    report = place.collect()
    assert any("rebuilt" in note for note in report.notes)
    assert place.contents() == before
    assert place.problems() == []


def test_a_preserved_catalog_that_cannot_be_read_stops_it_before_the_first_delete(place: Place) -> None:
    place.publish("/a", {"f": b"x"}, tag="t")
    place.publish("/a", {"f": b"y"})
    place.pass_time(days=5)
    root = place.manifest().root
    place.store.put(root.key, b"rotten")
    before = place.objects()
    with refused(CollectionRefused, fqrn=FQRN):
        place.collect()
    assert place.objects() == before


def test_a_tag_whose_root_is_gone_is_named(place: Place) -> None:
    tagged = place.publish("/a", {"f": b"x"}, tag="lost")
    place.publish("/a", {"f": b"y"})
    place.store.delete([tagged.root.key])
    with place.collection() as collection:
        collection.begin()
        with refused(CollectionRefused, fqrn=FQRN) as caught:
            collection.mark()
        collection.abandon()
    assert "'lost'" in caught.value.hint
    assert place.phase() is CollectionPhase.IDLE


@pytest.mark.parametrize("step", [-timedelta(days=2), -timedelta(hours=3)])
def test_a_clock_that_went_back_stops_it(place: Place, step: timedelta) -> None:
    place.publish("/a", {"f": b"x"})
    place.collect()
    place.now += step
    with refused(CollectionRefused, fqrn=FQRN):
        place.collect()


def test_a_damaged_record_stops_it(place: Place) -> None:
    place.publish("/a", {"f": b"x"})
    place.collect()
    place.store.put(RECORD_KEY, b"{}")
    with pytest.raises(FormatError):
        place.collect()


def test_refused_deletes_are_repeated_and_listed(place: Place, old: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    delete = place.store.delete

    def refusing(keys: list[str]) -> int:
        wanted = list(keys)
        if old.root.key in wanted:
            tried.append(old.root.key)
            raise Forbidden("no", key=old.root.key)
        return delete(wanted)

    monkeypatch.setattr(place.store, "delete", refusing)
    report = place.collect()
    assert list(report.failed) == [old.root.key]
    assert len(tried) == 3
    assert not report.ok
    assert report.deleted == report.condemned - 1
    assert place.phase() is CollectionPhase.IDLE


@pytest.mark.usefixtures("old")
def test_a_dry_run_changes_nothing(place: Place) -> None:
    before = dict(place.store.objects)
    with place.collection(ALL_ORPHANS, dry_run=True) as collection:
        collection.mark()
        assert not collection.condemn()
    assert collection.report.condemned > 0
    assert place.store.objects == before


# -- beside commits that are stopped: their roots are no revisions


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


@pytest.mark.slow
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
