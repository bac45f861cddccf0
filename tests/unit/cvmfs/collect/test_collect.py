"""A garbage collection: what stays and what goes, beside commits and a store without an answer."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, cast

import pytest

from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import KEY, CollectionRecord, CollectionRules, read_record
from include.cvmfs.collect.sweep import SwitchingSide
from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.metadata_objects import REFLOG_KEY
from include.cvmfs.commit.tags import add_tag
from include.cvmfs.coordination import condemned
from include.cvmfs.coordination.condemned import PREFIX, key_of, read_index, read_list
from include.cvmfs.coordination.generation import STATUS_KEY, CollectionPhase, look
from include.cvmfs.errors import GenerationMoved, ManifestConflict
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import compress
from include.storage.buckets import GRANTS, Role
from include.storage.errors import Forbidden, StoreError, Unavailable
from include.storage.store import Store, Version
from tests.fakes.collecting import ALL_ORPHANS, BOLD, CAREFUL, FQRN, Place, run, signer
from tests.fakes.process import Died, ProcessStore
from tests.fakes.publishing import Judged
from tests.fakes.refused import refused


def die_ahead(step: SwitchStep) -> None:
    """Die with the reflog written and the manifest not."""
    if step is SwitchStep.REFLOG_WRITTEN:
        raise Died


def test_what_only_revisions_before_the_grace_name_goes_and_all_else_stays(place: Place) -> None:
    old = place.publish("/a", {"f": b"old", "both": b"both"})
    gone = hash_bytes(compress(b"old"))
    place.pass_time(hours=1)
    place.publish("/a", {"f": b"new", "both": b"both"})
    place.supersede()
    place.pass_time(days=4)
    before = place.contents()
    report = place.collect()
    assert not place.store.exists(gone.key)
    assert not place.store.exists(old.root.key)
    assert place.contents() == before
    assert report.ok
    assert report.roots_condemned >= 1
    assert report.deleted == report.condemned > 0
    assert place.problems() == []
    assert place.phase() is CollectionPhase.IDLE


def test_a_revision_ages_from_when_it_was_superseded(place: Place) -> None:
    old = place.publish("/a", {"f": b"old"})
    place.pass_time(days=10)
    place.publish("/a", {"f": b"new"})
    place.supersede()
    before = place.contents(old.root)
    place.pass_time(days=2, hours=23)
    place.collect()
    assert place.contents(old.root) == before
    place.pass_time(hours=2)
    place.collect()
    assert not place.store.exists(old.root.key)


def test_a_commit_that_died_does_not_make_the_revision_before_it_older(place: Place) -> None:
    old = place.publish("/a", {"f": b"old"})
    place.pass_time(hours=1)
    publisher = place.publisher()
    with pytest.raises(Died):
        publisher.commit(publisher.judge(publisher.prepare("/b", {"f": b"never seen"})), die_ahead)
    place.pass_time(days=10)
    place.publish("/a", {"f": b"new"})
    place.supersede()
    before = place.contents(old.root)
    history = place.store.get(str(old.history and old.history.key))
    place.pass_time(hours=1)
    place.collect()
    assert place.contents(old.root) == before, "readers were on it an hour ago"
    assert place.store.get(str(old.history and old.history.key)) == history
    place.pass_time(days=4)
    place.supersede()
    place.pass_time(days=4)
    place.collect(ALL_ORPHANS)
    assert place.objects() == place.needed()


def test_what_a_sweep_that_died_took_is_not_looked_for_by_the_next_collection(place: Place) -> None:
    """The root of a commit that died was the newest of all; the sweep was finished by another, which prunes nothing."""
    publisher = place.publisher()
    place.publish("/a", {"f": b"x"})
    with pytest.raises(Died):
        publisher.commit(publisher.judge(publisher.prepare("/b", {"f": b"never seen"})), die_ahead)
    place.pass_time(days=4)
    with place.collection(ALL_ORPHANS) as collection:
        run(collection, "begin", "sweep")
    place.pass_time(hours=2)
    assert place.collect(ALL_ORPHANS).resumed
    place.publish("/a", {"f": b"y"})
    assert place.collect(ALL_ORPHANS).ok
    assert place.problems() == []


def test_a_tag_protects_its_revision_until_it_is_removed(place: Place) -> None:
    old = place.publish("/a", {"f": b"old"}, tag="kept")
    place.pass_time(days=1)
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.publish("/b", {"f": b"more"})
    place.pass_time(days=9)
    before = place.contents(old.root)
    place.collect()
    assert place.contents(old.root) == before
    place.untag("kept")
    place.collect()
    assert not place.store.exists(old.root.key)
    assert place.problems() == []


def test_the_reflog_forgets_what_was_collected_and_the_manifest_names_it(place: Place, old: Manifest) -> None:
    place.publish("/b", {"f": b"new"})
    place.collect()
    reflog = Reflog.load(place.store.get(REFLOG_KEY))
    assert not reflog.contains(old.root)
    assert place.manifest().reflog == reflog.hash()
    assert json.loads(place.store.get(STATUS_KEY))["last_gc"].endswith("UTC 2026")


def test_orphans_go_when_they_are_old_a_seventh_of_the_names_a_night(place: Place) -> None:
    place.publish("/a", {"f": b"x"})
    orphans = {place.keep(b"orphan %d" % number).key for number in range(60)}
    place.pass_time(hours=47)
    place.collect(ALL_ORPHANS)
    assert orphans <= place.objects(), "younger than the grace of orphans"
    left = len(orphans)
    for night in range(7):
        place.pass_time(days=1)
        place.collect()
        now_left = len(orphans & place.objects())
        assert now_left < left, f"night {night} took none of 60"
        left = now_left
    assert left == 0
    assert place.problems() == []


@pytest.mark.usefixtures("old")
def test_nothing_is_deleted_that_no_published_list_names(place: Place) -> None:
    with place.collection(ALL_ORPHANS) as collection:
        run(collection, "begin", "spare")
        name = look(place.store).running_list
        assert name is not None
        named = {one.key for one in read_list(place.store, name)}
        before = place.objects()
        collection.sweep()
        assert before - place.objects() == named
        collection.end()


def test_what_a_newer_revision_needs_comes_off_the_list(place: Place) -> None:
    place.publish("/a", {"f": b"again"})
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    with place.collection() as collection:
        run(collection, "begin", "mark")
        # committed before the list is out: a publisher that found it stored and judged at "marking"
        place.publish("/b", {"f": b"again"})
        report = run(collection, "condemn", "end")
    assert report.spared > 0
    assert place.problems() == []


def test_publishers_judge_again_once_in_a_collection_when_its_list_is_out(place: Place) -> None:
    place.publish("/a", {"f": b"old"})
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.collect()
    place.pass_time(days=4)
    publisher = place.publisher()

    def judged(path: str) -> Judged:
        return publisher.judge(publisher.prepare(path, {"f": path.encode()}))

    before, late = judged("/b"), judged("/c")
    with place.collection() as collection:
        assert collection.begin()
        publisher.commit(before)
        run(collection, "mark", "condemn")
        with refused(GenerationMoved):
            publisher.commit(late)
        with_the_list = judged("/c")
        collection.spare()
        publisher.commit(with_the_list)
        in_the_sweep = judged("/d")
        collection.sweep()
        assert collection.end().deleted > 0
    after = judged("/e")
    publisher.commit(in_the_sweep)
    with place.collection() as collection:
        assert collection.begin()
        publisher.commit(after)
        collection.end()
    assert place.problems() == []


def test_a_tag_that_came_before_the_list_was_out_protects(place: Place, old: Manifest) -> None:
    place.publish("/b", {"f": b"more"})
    before = place.contents(old.root)
    with place.collection() as collection:
        run(collection, "begin", "mark")
        add_tag(place.store, FQRN, "late", str(old.root), signer=signer(), now=place.seconds)
        run(collection, "condemn", "end")
    assert place.contents(old.root) == before


@pytest.mark.usefixtures("old")
def test_a_commit_that_overtakes_the_pruning_of_the_reflog_leaves_a_manifest_that_names_it(place: Place) -> None:
    """The commit wrote its reflog first, the collection pruned it, and then the commit switched."""
    publisher, go_on, ahead = place.publisher(), threading.Event(), threading.Event()
    judged = []

    def stand(step: SwitchStep) -> None:
        if step is SwitchStep.FENCED and not ahead.is_set():
            ahead.set()
            assert go_on.wait(120)

    commit = threading.Thread(target=lambda: publisher.commit(judged[0], stand))

    def overtaken(point: str) -> None:
        if point == "before prune: reflog" and not ahead.is_set():
            judged.append(publisher.judge(publisher.prepare("/b", {"f": b"beside"})))
            commit.start()
            assert ahead.wait(120)
            began.append(point)
        elif point == "before prune: manifest" and not go_on.is_set():
            go_on.set()
            commit.join(120)

    began: list[str] = []
    place.collect(store=ProcessStore(place.store, overtaken))
    assert began
    assert place.manifest().reflog == Reflog.load(place.store.get(REFLOG_KEY)).hash()
    assert place.problems() == []


def test_after_an_error_of_the_store_a_claim_can_be_given_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.publish("/a", {"f": b"x"})

    def away(verb: str, key: str) -> None:
        if verb == "list":
            raise StoreError("the store is away", key="away")

    place.store.before = away
    with place.collection(ALL_ORPHANS) as collection:
        run(collection, "begin", "mark")
        with refused(StoreError, key="away"):
            collection.condemn()
        collection.abandon()
    assert place.phase() is CollectionPhase.IDLE
    assert BOLD.careful is False


@pytest.mark.parametrize("retried_by", ["the store", "the sweep"])
def test_a_delete_without_an_answer_is_let_settle(
    place: Place, monkeypatch: pytest.MonkeyPatch, retried_by: str
) -> None:
    """The store may carry it out later, and take away what a publisher has sent again. A store that repeats nothing
    (``retries: 0``) leaves it to the sweep."""
    asked = set[str]()
    waited: list[float] = []
    swept: list[int] = []

    def wait(seconds: float) -> None:
        document = look(place.store).generation
        assert document is not None
        swept.append(document.swept)
        waited.append(seconds)

    delete = place.store.delete

    def lost_answer(keys: list[str]) -> int:
        if retried_by == "the store":
            place.store.counters.retry("timeout")
        elif not asked.issuperset(keys):
            asked.update(keys)
            raise Unavailable("no answer", key=keys[0], cause="timeout")
        return delete(keys)

    monkeypatch.setattr(place.store, "delete", lost_answer)
    place.publish("/a", {f"f{number}": b"old %d" % number for number in range(30)})
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    report = place.collect(CollectionRules(careful=False, wait=wait))
    assert report.deleted > 30
    assert sum(waited) == pytest.approx(600, abs=60)
    assert set(swept) == {0}


def test_faster_commits_delay_barrier_and_pruning(place: Place, old: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    fence = SwitchingSide.fence

    def slower(side: SwitchingSide, now: datetime) -> None:
        tries.append(now)
        if len(tries) < 4:
            raise ManifestConflict(FQRN)
        fence(side, now)

    def never(side: SwitchingSide, gone: object, now: datetime) -> int:
        raise ManifestConflict(FQRN)

    monkeypatch.setattr(SwitchingSide, "fence", slower)
    with monkeypatch.context() as patch:
        patch.setattr(SwitchingSide, "forget", never)
        report = place.collect()
    assert len(tries) == 4
    assert not place.store.exists(old.root.key)
    assert any("prunes the reflog" in note for note in report.notes)
    assert place.phase() is CollectionPhase.IDLE
    place.pass_time(days=1)
    place.collect()
    assert not Reflog.load(place.store.get(REFLOG_KEY)).contains(old.root)


def test_a_collection_that_began_when_another_ended_goes_on_from_its_record(place: Place, old: Manifest) -> None:
    with place.collection() as second:
        place.collect(CAREFUL)
        run(second, "begin", "end")
    assert not place.store.exists(old.root.key)
    assert place.phase() is CollectionPhase.IDLE
    assert read_record(place.store)[0].total == 2


def test_copies_of_files_that_lie_elsewhere_are_no_orphans_and_may_be_absent(place: Place) -> None:
    """Stock tools with `-X` store them so."""

    def publish(content: bytes) -> str:
        data = compress(content)
        name = hash_bytes(data)
        chunk = Chunk(0, len(content), hash_bytes(data, suffix="P"))
        external = Dirent("f", stat.S_IFREG | 0o644, size=len(content), hash=name, external=True)

        def change(edit: Edit) -> None:
            edit.add("/x", Dirent("x", stat.S_IFDIR | 0o755, size=4096, linkcount=2))
            edit.add("/x/f", external)
            edit.add("/x/c", external.changed(name="c", hash=None, chunked=True), [chunk])
            edit.add("/x/absent", external.changed(name="absent", hash=hash_bytes(b"nowhere")))

        place._change(change, "/x")
        for key in (name.key, chunk.hash.key):
            place.store.put(key, data)
        return name.key

    key = publish(b"lies elsewhere")
    place.pass_time(days=3)
    for _ in range(2):
        report = place.collect(ALL_ORPHANS)
        assert (report.ok, report.orphans) == (True, 0)
        assert {key, f"{key}P"} <= place.objects()
    place.remove("/x")
    place.supersede()
    place.supersede()
    place.pass_time(days=4)
    place.collect(ALL_ORPHANS)
    place.pass_time(days=1)
    assert place.collect(ALL_ORPHANS).ok
    assert not {key, f"{key}P"} & place.objects()


# -- keys


class OfRole:
    """The store by the key of a role, which refuses what its policy does not grant."""

    def __init__(self, store: Any, role: Role) -> None:
        self._store, self._role = store, role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _require(self, action: str, *keys: str) -> None:
        forms = [form for grant in GRANTS[self._role] if action in grant.actions for form in grant.below or ()]
        for key in keys:
            if not any(fnmatchcase(key, form) for form in forms):
                raise Forbidden(f"{action} by the {self._role.value}", key=key)

    def put(self, key: str, data: bytes) -> None:
        self._require("s3:PutObject", key)
        self._store.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._require("s3:PutObject", key)
        return bool(self._store.put_if_absent(key, data))

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        self._require("s3:PutObject", key)
        version: Version = self._store.replace(key, data, expected=expected)
        return version

    def delete(self, keys: Iterable[str]) -> int:
        gone = list(keys)
        self._require("s3:DeleteObject", *gone)
        return int(self._store.delete(gone))

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        gone = list(keys)
        self._require("s3:DeleteObject", *gone)
        refusals: Mapping[str, StoreError] = self._store.delete_each(gone)
        return refusals


def test_collector_and_gateway_each_need_their_own_rights_only(place: Place) -> None:
    place.garbage()
    collector, gateway = (cast("Store", OfRole(place.store, role)) for role in (Role.COLLECTOR, Role.GATEWAY))
    side = SwitchingSide(gateway, FQRN, signer())
    with GarbageCollection(collector, side, folder=place.folder, rules=BOLD, now=lambda: place.now) as collection:
        report = run(collection, "begin", "end")
    assert report.deleted
    assert json.loads(place.store.get(STATUS_KEY))["last_gc"]


# -- careful mode: a collection deletes what another condemned a day before


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are read from the store each time, as by other processes."""
    monkeypatch.setattr(condemned, "_cache", condemned._Cache(0))


def test_careful_mode_deletes_what_was_condemned_twice_a_day_apart(place: Place) -> None:
    old = place.publish("/a", {"f": b"old"})
    orphan = place.keep(b"orphan")
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    rules = CollectionRules(all_orphans=True)
    first = place.collect(rules)
    assert first.careful
    assert first.deleted == 0
    assert first.once > 0
    place.pass_time(hours=3)
    assert place.collect(rules).deleted == 0
    assert place.store.exists(old.root.key)
    place.pass_time(hours=21)
    second = place.collect(rules)
    assert second.deleted == first.once
    assert not place.store.exists(old.root.key)
    assert not place.store.exists(orphan.key)
    place.pass_time(days=1)
    assert place.collect(rules).deleted == 0
    assert not Reflog.load(place.store.get(REFLOG_KEY)).contains(old.root)
    assert place.problems() == []


def test_an_orphan_that_was_condemned_once_and_sent_again_stays(place: Place) -> None:
    orphan = place.keep(b"orphan")
    place.pass_time(days=4)
    place.collect(CollectionRules(all_orphans=True))
    place.pass_time(hours=23)
    place.keep(b"orphan")
    place.pass_time(hours=2)
    place.collect(CAREFUL)
    assert place.store.exists(orphan.key)


def test_the_first_fourteen_collections_are_careful(place: Place) -> None:
    assert [CAREFUL.is_careful(ended) for ended in (0, 13, 14)] == [True, True, False]
    place.store.put(KEY, CollectionRecord(total=13).format())
    assert place.collect(CAREFUL).careful
    assert not place.collect(CAREFUL).careful


def test_a_lost_list_of_condemned_objects_waits_again(place: Place, old: Manifest, uncached: None) -> None:
    """A backup of the store may be without the lists: no collection fails for that, and none deletes too early."""
    once = place.collect(CAREFUL).once
    place.store.delete([found.key for found in place.store.list(PREFIX)])
    place.pass_time(hours=20)
    second = place.collect(CAREFUL)
    assert (second.deleted, second.once) == (0, once)
    assert any("wait from the start again" in note for note in second.notes)
    place.pass_time(hours=20)
    assert place.collect(CAREFUL).deleted == 0
    assert place.store.exists(old.root.key)
    place.pass_time(hours=4)
    assert place.collect(CAREFUL).deleted >= once
    assert not place.store.exists(old.root.key)


def test_a_shard_of_that_list_that_is_lost_delays_its_objects_only(place: Place, uncached: None) -> None:
    place.publish("/a", {f"f{number}": b"old %d" % number for number in range(20)})
    place.publish("/a", {"f": b"new"})
    place.supersede()
    place.pass_time(days=4)
    once = place.collect(CAREFUL).once
    index = read_index(place.store, str(read_record(place.store)[0].once))
    number = next(number for number, name in enumerate(index.names) if name is not None)
    place.store.delete([key_of(str(index.names[number]))])
    place.pass_time(days=1)
    second = place.collect(CAREFUL)
    assert second.deleted == once - index.counts[number]
    place.pass_time(days=1)
    assert place.collect(CAREFUL).deleted >= index.counts[number]
    assert place.problems() == []
