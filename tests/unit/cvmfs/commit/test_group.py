"""Changes of many become one revision, with one history, reflog and manifest; one that conflicts is refused alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import MANIFEST_KEY, Change, Head, NewTag, SwitchStep, commit_group, read_head
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.group import STEPS, true_base
from include.cvmfs.commit.metadata_objects import REFLOG_KEY, Records
from include.cvmfs.errors import BaseChanged, CommitError, ManifestConflict, MergeError, ObjectMissing, UnknownBase
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog
from include.cvmfs.format.hashes import CATALOG, ObjectHash, hash_bytes
from include.cvmfs.revision.needed_objects import Lineage
from tests.fakes.edits import LATER, EditedStore, change, commit, stored
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, opened, signer as key
from tests.fakes.refused import refused

ABSENT = ObjectHash.parse("ab" * 20, suffix=CATALOG)


class Groups:
    """Commits groups, with all that is kept between two of them."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.catalogs = CatalogCache(store)
        self.records = Records()
        self.lineage = Lineage(self.catalogs)

    def commit(self, *changes: Change, **more) -> list[Head | Exception]:
        return commit_group(
            self.store, changes, fqrn=FQRN, signer=key(), now=LATER,
            catalogs=self.catalogs, records=self.records, lineage=self.lineage, **more,
        )  # fmt: skip


@pytest.fixture
def groups(store: MemoryStore) -> Groups:
    return Groups(store)


def wished(store: MemoryStore, path: str, tag: str = "") -> Change:
    return Change(path, *change(store, path), NewTag(tag) if tag else None)


def revisions(outcomes: Sequence[Head | Exception]) -> list[int | type]:
    return [one.manifest.revision if isinstance(one, Head) else type(one) for one in outcomes]


def names(store: MemoryStore) -> set[str]:
    return {entry.name for entry in opened(store).revision.listing("")}


def assert_sound(store: MemoryStore) -> None:
    repository = opened(store)
    assert check(repository).problems == ()
    assert hash_bytes(store.objects[REFLOG_KEY]).digest == repository.manifest.reflog.digest


def test_a_group_is_one_revision_with_everybodys_change_tag_and_root(store: MemoryStore, groups: Groups) -> None:
    changes = [wished(store, f"/d{number}", f"v{number}") for number in range(5)]
    assert revisions(groups.commit(*changes)) == [1] * 5
    assert names(store) == {f"d{number}" for number in range(5)}
    tags = {tag.name: tag.revision for tag in opened(store).history().tags()}
    assert tags == {"trunk": 1, "trunk-previous": 0} | {f"v{number}": 1 for number in range(5)}
    reflog = Reflog.load(store.objects[REFLOG_KEY])
    assert all(reflog.contains(one.new_root) for one in changes)
    assert_sound(store)


def test_what_is_kept_between_groups_makes_the_same_as_what_is_read_again(store: MemoryStore, groups: Groups) -> None:
    for number in range(4):
        outcome = groups.commit(wished(store, f"/a{number}", f"a{number}"), wished(store, f"/b{number}"))
        assert revisions(outcome) == [2 * number + 1] * 2
        commit(store, *change(store, f"/c{number}"), f"/c{number}")  # another writer, in between
        assert_sound(store)
    assert len(names(store)) == 12
    reads = store.counters.gets
    groups.commit(wished(store, "/x"))
    reads = store.counters.gets
    groups.commit(wished(store, "/y"))
    assert store.counters.gets - reads <= 5, "manifest and the publisher's catalogs, neither reflog nor tags"


def test_each_reason_refuses_one_and_lets_the_others_go_on(store: MemoryStore, groups: Groups) -> None:
    taken = wished(store, "/taken", "first")
    good = [wished(store, "/good0"), wished(store, "/good1", "once")]
    twice = wished(store, "/twice", "once")
    badly = wished(store, "/badly", "not a name")
    outside = Change("/elsewhere", *change(store, "/outside"))
    unknown = Change("/lost", good[0].old_root, ABSENT)
    strange = Change("/s", good[0].new_root, good[1].new_root)
    assert revisions(groups.commit(taken)) == [1]
    again = wished(store, "/again", "first")
    outcomes = groups.commit(
        good[0], twice_at(store, "/taken"), outside, unknown, good[1], twice, badly, again, strange
    )
    assert [one if isinstance(one, int) else one.__name__ for one in revisions(outcomes)] == [
        2, "BaseChanged", "MergeError", "ObjectMissing", 2, "TagError", "TagError", "TagError", "UnknownBase",
    ]  # fmt: skip
    assert "'once'" in str(outcomes[5])
    assert "another change" in str(outcomes[5])
    assert names(store) == {"taken", "good0", "good1"}
    assert_sound(store)


def twice_at(store: MemoryStore, path: str) -> Change:
    """A change at a path that another changed since: made on the first revision."""
    first = next(tag for tag in opened(store).history().tags() if tag.name == "trunk-previous").hash
    edit = Edit(CatalogCache(store), first)
    edit.make_nested(path, DIRECTORY.changed(mtime=7))
    return Change(path, first, stored(store, edit))


def test_a_change_that_half_applied_before_it_failed_leaves_no_trace(store: MemoryStore, groups: Groups) -> None:
    base = read_head(store, FQRN).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.make_nested("/lease", DIRECTORY)
    edit.add("/zzz", DIRECTORY)  # comes after what lies inside the lease
    half = Change("/lease", base, stored(store, edit))
    outcomes = groups.commit(wished(store, "/before"), half, wished(store, "/after"))
    assert revisions(outcomes) == [1, MergeError, 1]
    assert names(store) == {"before", "after"}
    assert_sound(store)


def test_a_lease_that_ended_before_the_switch_is_left_out(store: MemoryStore, groups: Groups) -> None:
    asked: list[list[int]] = []

    def fence(numbers: Sequence[int]) -> Mapping[int, Exception]:
        asked.append(list(numbers))
        return {1: CommitError("/d1")} if 1 in numbers else {}

    changes = [wished(store, f"/d{number}", f"v{number}") for number in range(3)]
    assert revisions(groups.commit(*changes, fence=fence)) == [1, CommitError, 1]
    assert asked == [[0, 1, 2], [0, 2]]
    assert names(store) == {"d0", "d2"}
    assert {tag.name for tag in opened(store).history().tags()} == {"trunk", "trunk-previous", "v0", "v2"}
    assert not Reflog.load(store.objects[REFLOG_KEY]).contains(changes[1].new_root)
    assert_sound(store)
    assert revisions(groups.commit(changes[1])) == [2], "it may be tried again"


def test_when_no_change_is_left_nothing_is_switched(store: MemoryStore, groups: Groups) -> None:
    before = dict(store.objects)
    gone = groups.commit(wished(store, "/a"), fence=lambda numbers: dict.fromkeys(numbers, CommitError("/a")))
    assert revisions(gone) == [CommitError]
    assert {key: store.objects[key] for key in (MANIFEST_KEY, REFLOG_KEY)} == {
        key: before[key] for key in (MANIFEST_KEY, REFLOG_KEY)
    }


def test_a_change_that_is_there_already_makes_no_revision(store: MemoryStore, groups: Groups) -> None:
    one, other = wished(store, "/one"), wished(store, "/other", "kept")
    groups.commit(one, other)
    assert revisions(groups.commit(one, other)) == [1, 1]
    assert revisions(groups.commit(wished(store, "/new"), one, other)) == [2, 1, 1]
    assert_sound(store)


def test_a_group_that_lost_the_race_is_merged_again_on_the_winners_revision(store: MemoryStore, groups: Groups) -> None:
    rival, fired = wished(store, "/rival"), []

    def interfere(step: SwitchStep) -> None:
        if step is SwitchStep.BEFORE_SWITCH and not fired:
            fired.append(True)
            commit(store, rival.old_root, rival.new_root, "/rival")

    assert revisions(groups.commit(wished(store, "/a"), wished(store, "/b"), on_step=interfere)) == [2, 2]
    assert names(store) == {"a", "b", "rival"}
    assert_sound(store)


def test_a_group_that_always_loses_gives_up_and_tells_everybody(store: MemoryStore, groups: Groups) -> None:
    number = iter(range(100))

    def interfere(step: SwitchStep) -> None:
        if step is SwitchStep.BEFORE_SWITCH:
            path = f"/r{next(number)}"
            commit(store, *change(store, path), path)

    outcome = groups.commit(wished(store, "/a"), wished(store, "/b"), on_step=interfere)
    assert revisions(outcome) == [ManifestConflict] * 2
    assert_sound(store)


def test_an_old_base_is_rebased_unless_the_leased_path_was_touched(store: MemoryStore, groups: Groups) -> None:
    groups.commit(wished(store, "/a"), wished(store, "/b"))
    late = [wished(store, "/a/late"), wished(store, "/b/late")]
    groups.commit(wished(store, "/a/early"), wished(store, "/c"))
    on_parents = [Change("/a", late[0].old_root, late[0].new_root), Change("/b", late[1].old_root, late[1].new_root)]
    assert revisions(groups.commit(*on_parents)) == [BaseChanged, 3]
    assert {entry.name for entry in opened(store).revision.listing("/a")} == {".cvmfscatalog", "early"}
    assert revisions(groups.commit(late[0])) == [4], "the lease that it needs is on a path that no other change touched"
    assert_sound(store)


def test_only_revisions_are_bases_however_long_past(store: MemoryStore, groups: Groups) -> None:
    first = wished(store, "/first")
    for number in range(6):
        commit(store, *change(store, f"/d{number}"), f"/d{number}")
    own = wished(store, "/own")
    groups.commit(own)
    from_own = Change("/other", own.new_root, change(store, "/other")[1])
    assert revisions(Groups(store).commit(from_own)) == [UnknownBase], "a root of a publisher was no revision"
    assert revisions(Groups(store).commit(Change("/other", ABSENT, own.new_root))) == [UnknownBase]
    assert revisions(Groups(store).commit(first)) == [8]
    assert_sound(store)


def test_lineage_is_handed_on(store: MemoryStore, groups: Groups) -> None:
    first = wished(store, "/first")
    for number in range(5):
        groups.commit(wished(store, f"/d{number}"))
    known = groups.lineage.learnt()
    assert groups.lineage.learnt() == []
    again = Groups(store)
    again.lineage = Lineage(again.catalogs, known)
    reads = store.counters.gets
    again.lineage.require(known[0].root, read_head(store, FQRN).manifest, lambda _: False)
    assert store.counters.gets == reads + 1, "the manifest of this test"
    assert revisions(again.commit(first)) == [6]


# -- the base of a change is where its catalogs come from, not what the request says


def after(repository: EditedStore, root: ObjectHash, name: str) -> ObjectHash:
    edit = repository.edit(root)
    edit.add(name, DIRECTORY)
    return repository.keep(edit)


def base_of(repository: EditedStore, told: ObjectHash, new: ObjectHash, *revisions: ObjectHash) -> ObjectHash:
    known = {root.digest for root in revisions}
    return true_base(repository.cache, told=told, new=new, is_revision=lambda root: root.digest in known)


def test_the_base_is_the_last_revision_on_the_way_back_of_the_catalog(repository: EditedStore) -> None:
    old = after(repository, repository.root, "/a")
    assert base_of(repository, old, after(repository, old, "/b")) == old
    assert base_of(repository, old, old) == old
    assert base_of(repository, old, repository.root) == old, "without a predecessor that of the request counts"
    later = after(repository, old, "/of-another")
    assert base_of(repository, later, after(repository, old, "/mine"), old, later) == old
    step = after(repository, old, "/b")
    new = after(repository, step, "/c")
    assert base_of(repository, old, new, old) == old
    assert base_of(repository, after(repository, old, "/x"), new, old) == old


def test_a_change_of_something_that_is_no_revision_is_refused(repository: EditedStore) -> None:
    told = after(repository, repository.root, "/a")
    catalog = repository.cache.open(after(repository, told, "/b"))
    catalog.set_property("previous_revision", "1" * 40)
    orphan = catalog.pack()
    repository.store.put(orphan.hash.key, orphan.data)
    with refused(BaseChanged, path=""):
        base_of(repository, told, orphan.hash, told)


def test_an_endless_way_back_ends(repository: EditedStore) -> None:
    root = repository.root
    for number in range(STEPS + 2):
        root = after(repository, root, f"/d{number}")
    with pytest.raises(BaseChanged):
        base_of(repository, EditedStore().root.with_suffix("C"), root)


def test_a_new_root_that_is_not_stored_is_missing(repository: EditedStore) -> None:
    with pytest.raises(ObjectMissing):
        base_of(repository, repository.root, ObjectHash.parse("2" * 40))
