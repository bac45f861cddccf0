"""Changes of many become one revision: one history, reflog and manifest; whoever cannot come along is refused alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import (
    MANIFEST_KEY,
    Change,
    Head,
    NewTag,
    SwitchStep,
    commit_group,
    read_head,
    store_all,
)
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.metadata_objects import REFLOG_KEY, Records
from include.cvmfs.errors import BaseChanged, CommitError, ManifestConflict, MergeError, TagError, UnknownBase
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import CATALOG, ObjectHash, hash_bytes
from include.cvmfs.revision.needed_objects import Lineage
from tests.fakes.memorystore import MemoryStore
from tests.unit.cvmfs.commit.test_commit import FQRN, MASTER, NOW, SIGNER, change, commit, opened
from tests.unit.cvmfs.commit.test_edit import DIRECTORY

LATER = int(NOW.timestamp()) + 60
ABSENT = ObjectHash.parse("ab" * 20, suffix=CATALOG)


class Signer:
    """Who commits groups: with all that is kept between two of them."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.catalogs = CatalogCache(store)
        self.records = Records()
        self.lineage = Lineage(self.catalogs)

    def commit(self, *changes: Change, **more) -> list[Head | Exception]:
        return commit_group(
            self.store, changes, fqrn=FQRN, signer=SIGNER, now=LATER,
            catalogs=self.catalogs, records=self.records, lineage=self.lineage, **more,
        )  # fmt: skip


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=NOW)
    return store


@pytest.fixture
def signer(store: MemoryStore) -> Signer:
    return Signer(store)


def wanted(store: MemoryStore, path: str, tag: str = "") -> Change:
    return Change(path, *change(store, path), NewTag(tag) if tag else None)


def revisions(outcomes: Sequence[Head | Exception]) -> list[int | type]:
    return [one.manifest.revision if isinstance(one, Head) else type(one) for one in outcomes]


def names(store: MemoryStore) -> set[str]:
    return {entry.name for entry in opened(store).revision.listing("")}


def assert_sound(store: MemoryStore) -> None:
    repository = opened(store)
    assert check(repository).problems == ()
    assert hash_bytes(store.objects[REFLOG_KEY]).digest == repository.manifest.reflog.digest


def test_a_group_is_one_revision_with_everybodys_change_tag_and_root(store: MemoryStore, signer: Signer) -> None:
    changes = [wanted(store, f"/d{number}", f"v{number}") for number in range(5)]
    assert revisions(signer.commit(*changes)) == [1] * 5
    assert names(store) == {f"d{number}" for number in range(5)}
    tags = {tag.name: tag.revision for tag in opened(store).history().tags()}
    assert tags == {"trunk": 1, "trunk-previous": 0} | {f"v{number}": 1 for number in range(5)}
    reflog = Reflog.load(store.objects[REFLOG_KEY])
    assert all(reflog.contains(one.new_root) for one in changes)
    assert_sound(store)


def test_what_is_kept_between_groups_makes_the_same_as_what_is_read_anew(store: MemoryStore, signer: Signer) -> None:
    for number in range(4):
        outcome = signer.commit(wanted(store, f"/a{number}", f"a{number}"), wanted(store, f"/b{number}"))
        assert revisions(outcome) == [2 * number + 1] * 2
        commit(store, *change(store, f"/c{number}"), f"/c{number}")  # somebody else, in between
        assert_sound(store)
    assert len(names(store)) == 12
    reads = store.counters.gets
    signer.commit(wanted(store, "/x"))
    reads = store.counters.gets
    signer.commit(wanted(store, "/y"))
    assert store.counters.gets - reads <= 5, "manifest and the publisher's catalogs, neither reflog nor tags"


def test_each_reason_refuses_one_and_lets_the_others_go_on(store: MemoryStore, signer: Signer) -> None:
    taken = wanted(store, "/taken", "first")
    good = [wanted(store, "/good0"), wanted(store, "/good1", "once")]
    twice = wanted(store, "/twice", "once")
    badly = wanted(store, "/badly", "not a name")
    outside = Change("/elsewhere", *change(store, "/outside"))
    unknown = Change("/lost", good[0].old_root, ABSENT)
    strange = Change("/s", good[0].new_root, good[1].new_root)
    assert revisions(signer.commit(taken)) == [1]
    again = wanted(store, "/again", "first")
    outcomes = signer.commit(
        good[0], twice_at(store, "/taken"), outside, unknown, good[1], twice, badly, again, strange
    )
    assert [one if isinstance(one, int) else one.__name__ for one in revisions(outcomes)] == [
        2, "BaseChanged", "MergeError", "ObjectMissing", 2, "TagError", "TagError", "TagError", "UnknownBase",
    ]  # fmt: skip
    assert names(store) == {"taken", "good0", "good1"}
    assert_sound(store)


def twice_at(store: MemoryStore, path: str) -> Change:
    """A change at a path where another stands since: made on the first revision."""
    first = next(tag for tag in opened(store).history().tags() if tag.name == "trunk-previous").hash
    edit = Edit(CatalogCache(store), first)
    edit.make_nested(path, DIRECTORY.changed(mtime=7))
    new = edit.finish(3)
    store_all(store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
    return Change(path, first, new.hash)


def test_a_change_that_half_applied_before_it_failed_leaves_no_trace(store: MemoryStore, signer: Signer) -> None:
    base = read_head(store, FQRN).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.make_nested("/lease", DIRECTORY)
    edit.add("/zzz", DIRECTORY)  # comes after what lies inside the lease
    new = edit.finish(1)
    store_all(store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
    outcomes = signer.commit(wanted(store, "/before"), Change("/lease", base, new.hash), wanted(store, "/after"))
    assert revisions(outcomes) == [1, MergeError, 1]
    assert names(store) == {"before", "after"}
    assert_sound(store)


def test_a_lease_that_ended_right_before_the_switch_is_taken_out_and_the_rest_is_merged_again(
    store: MemoryStore, signer: Signer
) -> None:
    asked: list[list[int]] = []

    def fence(numbers: Sequence[int]) -> Mapping[int, Exception]:
        asked.append(list(numbers))
        return {1: CommitError("/d1")} if 1 in numbers else {}

    changes = [wanted(store, f"/d{number}", f"v{number}") for number in range(3)]
    assert revisions(signer.commit(*changes, fence=fence)) == [1, CommitError, 1]
    assert asked == [[0, 1, 2], [0, 2]]
    assert names(store) == {"d0", "d2"}
    assert {tag.name for tag in opened(store).history().tags()} == {"trunk", "trunk-previous", "v0", "v2"}
    assert not Reflog.load(store.objects[REFLOG_KEY]).contains(changes[1].new_root)
    assert_sound(store)
    assert revisions(signer.commit(changes[1])) == [2], "it may be tried again"


def test_when_nobody_is_left_nothing_is_switched(store: MemoryStore, signer: Signer) -> None:
    before = dict(store.objects)
    gone = signer.commit(wanted(store, "/a"), fence=lambda numbers: dict.fromkeys(numbers, CommitError("/a")))
    assert revisions(gone) == [CommitError]
    assert {key: store.objects[key] for key in (MANIFEST_KEY, REFLOG_KEY)} == {
        key: before[key] for key in (MANIFEST_KEY, REFLOG_KEY)
    }


def test_a_change_that_stands_already_comes_along_and_makes_nothing(store: MemoryStore, signer: Signer) -> None:
    one, other = wanted(store, "/one"), wanted(store, "/other", "kept")
    signer.commit(one, other)
    assert revisions(signer.commit(one, other)) == [1, 1]
    assert revisions(signer.commit(wanted(store, "/new"), one, other)) == [2, 1, 1]
    assert_sound(store)


def test_a_group_that_lost_the_race_is_merged_again_on_the_winners_revision(store: MemoryStore, signer: Signer) -> None:
    rival, fired = wanted(store, "/rival"), []

    def interfere(step: SwitchStep) -> None:
        if step is SwitchStep.BEFORE_SWITCH and not fired:
            fired.append(True)
            commit(store, rival.old_root, rival.new_root, "/rival")

    assert revisions(signer.commit(wanted(store, "/a"), wanted(store, "/b"), on_step=interfere)) == [2, 2]
    assert names(store) == {"a", "b", "rival"}
    assert_sound(store)


def test_a_group_that_always_loses_gives_up_and_tells_everybody(store: MemoryStore, signer: Signer) -> None:
    number = iter(range(100))

    def interfere(step: SwitchStep) -> None:
        if step is SwitchStep.BEFORE_SWITCH:
            path = f"/r{next(number)}"
            commit(store, *change(store, path), path)

    outcome = signer.commit(wanted(store, "/a"), wanted(store, "/b"), on_step=interfere)
    assert revisions(outcome) == [ManifestConflict] * 2
    assert_sound(store)


def test_an_old_base_is_rebased_unless_something_touched_the_leased_path(store: MemoryStore, signer: Signer) -> None:
    signer.commit(wanted(store, "/a"), wanted(store, "/b"))
    late = [wanted(store, "/a/late"), wanted(store, "/b/late")]
    signer.commit(wanted(store, "/a/early"), wanted(store, "/c"))
    on_parents = [Change("/a", late[0].old_root, late[0].new_root), Change("/b", late[1].old_root, late[1].new_root)]
    assert revisions(signer.commit(*on_parents)) == [BaseChanged, 3]
    assert {entry.name for entry in opened(store).revision.listing("/a")} == {".cvmfscatalog", "early"}
    assert revisions(signer.commit(late[0])) == [4], "the lease that it needs is on a path that nobody touched"
    assert_sound(store)


def test_only_revisions_are_bases_however_long_past(store: MemoryStore, signer: Signer) -> None:
    first = wanted(store, "/first")
    for number in range(6):
        commit(store, *change(store, f"/d{number}"), f"/d{number}")
    own = wanted(store, "/own")
    signer.commit(own)
    from_own = Change("/other", own.new_root, change(store, "/other")[1])
    assert revisions(Signer(store).commit(from_own)) == [UnknownBase], "a root of a publisher was no revision"
    assert revisions(Signer(store).commit(Change("/other", ABSENT, own.new_root))) == [UnknownBase]
    assert revisions(Signer(store).commit(first)) == [8]
    assert_sound(store)


def test_lineage_is_handed_on(store: MemoryStore, signer: Signer) -> None:
    first = wanted(store, "/first")
    for number in range(5):
        signer.commit(wanted(store, f"/d{number}"))
    known = signer.lineage.learnt()
    assert signer.lineage.learnt() == []
    again = Signer(store)
    again.lineage = Lineage(again.catalogs, known)
    reads = store.counters.gets
    again.lineage.require(known[0].root, read_head(store, FQRN).manifest, lambda _: False)
    assert store.counters.gets == reads + 1, "the manifest of this test"
    assert revisions(again.commit(first)) == [6]


def test_tag_errors_name_the_tag(store: MemoryStore, signer: Signer) -> None:
    [_, second] = signer.commit(wanted(store, "/a", "v1"), wanted(store, "/b", "v1"))
    assert isinstance(second, TagError)
    assert "'v1'" in str(second)
    assert "another change" in str(second)
