"""Merges by adversaries: whatever two sides did to one base, no work is lost or reverted, or the merge is refused."""

from __future__ import annotations

import stat
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import BaseChanged, CatalogError, DestinationError, MergeError
from include.cvmfs.format.catalog import MARKER, NestedRef
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.paths import is_below
from include.cvmfs.revision.revision import Revision
from tests.fakes.edits import EditedStore, assert_consistent, file
from tests.fakes.local import DIRECTORY
from tests.fakes.refused import refused


def kept(repository: EditedStore, edit: Edit) -> dict[str, Dirent]:
    """The entries of the merged revision, after all of its counters and links were recounted."""
    return assert_consistent(repository.cache, repository.keep(edit))


def based_on(repository: EditedStore, base: ObjectHash, *steps: tuple[str, ...]) -> ObjectHash:
    """A revision derived from ``base``: ("file", path, content), ("dir", path), ("nested", path), ("remove", path)."""
    edit = repository.edit(base)
    for verb, path, *content in steps:
        if verb == "file":
            edit.add(path, file("".join(content).encode()))
        elif verb == "dir":
            edit.add(path, DIRECTORY)
        elif verb == "nested":
            edit.make_nested(path, DIRECTORY)
        else:
            edit.remove(path)
    return repository.keep(edit)


def chunked(*pieces: bytes) -> tuple[Dirent, list[Chunk]]:
    """A file of pieces of 10 bytes each: its row has no hash of its own, so only the pieces tell its content."""
    entry = Dirent("", stat.S_IFREG | 0o644, size=10 * len(pieces), chunked=True, mtime=1)
    return entry, [Chunk(10 * place, 10, hash_bytes(one, suffix="P")) for place, one in enumerate(pieces)]


def test_owner_and_attribute_changes_are_merged(repository: EditedStore) -> None:
    edit = repository.edit()
    edit.add("/d", DIRECTORY)
    edit.add("/d/f", file())
    base = repository.keep(edit)
    edit = repository.edit(base)
    edit.remove("/d/f")
    edit.add("/d/f", file(uid=1000))
    edit.touch("/d", DIRECTORY.changed(gid=7))
    new = repository.keep(edit)
    edit = repository.edit(base)
    edit.add("/other", file())
    merged = merge(repository.cache, base=base, new=new, current=repository.keep(edit), lease_path="/d")
    seen = assert_consistent(repository.cache, repository.keep(merged))
    assert (seen["/d/f"].uid, seen["/d"].gid, "/other" in seen) == (1000, 7, True)


# -- chunked files


def test_the_chunks_tell_whether_a_file_of_the_same_attributes_changed(repository: EditedStore) -> None:
    edit = repository.edit()
    edit.add("/big", *chunked(b"a", b"b"))
    edit.add("/d", DIRECTORY)
    base = repository.keep(edit)

    def changed(*pieces: bytes) -> ObjectHash:
        edit = repository.edit(base)
        edit.remove("/big")
        edit.add("/big", *chunked(*pieces))
        return repository.keep(edit)

    new = changed(b"a", b"c")
    with refused(MergeError, path="/big"):
        merge(repository.cache, base=base, new=new, current=base, lease_path="/d")
    with refused(BaseChanged, path="/big"):
        merge(repository.cache, base=base, new=new, current=changed(b"a", b"d"), lease_path="/big")
    merged = merge(repository.cache, base=base, new=new, current=base, lease_path="/big")
    root = repository.keep(merged)
    assert "/big" in assert_consistent(repository.cache, root)
    assert Revision(repository.cache, root).chunks("/big") == tuple(chunked(b"a", b"c")[1])


def test_a_new_nested_catalog_of_another_size_than_recorded_above_it_is_refused(repository: EditedStore) -> None:
    edit = repository.edit()
    reference, entry, counts = repository.nested("/n", {"a": file()})
    edit.hang(replace(reference, size=reference.size + 1), entry, counts)
    new = repository.keep(edit)
    with refused(CatalogError, path="/n"):
        merge(repository.cache, base=repository.root, new=new, current=repository.root, lease_path="/n")


@pytest.mark.parametrize("files", [0, 1, 100], ids=["nested catalog", "file", "copied by rows"])
def test_a_change_outside_of_the_lease_is_refused(repository: EditedStore, files: int) -> None:
    base = based_on(repository, repository.root, ("dir", "/d"), ("nested", "/n"))
    edit = repository.edit(base)
    for number in range(files):
        edit.add(f"/f{number}", file())
    if not files:
        edit.hang(*repository.nested("/n", {"f": file()}))
    with refused(MergeError, path="/f0" if files else "/n"):
        merge(repository.cache, base=base, new=repository.keep(edit), current=base, lease_path="/d")


# -- plain directories that others work in


@pytest.mark.parametrize(
    "replacement",
    [(), (("file", "/s", "now a file"),), (("nested", "/s"), ("file", "/s/f", "f"))],
    ids=["removed", "made a file", "made nested"],
)
def test_a_directory_in_use_is_not_taken_away(
    repository: EditedStore, replacement: tuple[tuple[str, ...], ...]
) -> None:
    base = based_on(repository, repository.root, ("dir", "/s"), ("nested", "/s/p"), ("file", "/s/f", "f"))
    new = based_on(repository, base, ("remove", "/s"), *replacement)
    edit = repository.edit(base)
    edit.hang(*repository.nested("/s/p", {"work": file(b"of another")}))
    with refused(BaseChanged, path="/s/p"):
        merge(repository.cache, base=base, new=new, current=repository.keep(edit), lease_path="/s")
    added = based_on(repository, base, ("file", "/s/g", "of another"))
    with refused(BaseChanged, path="/s/g"):
        merge(repository.cache, base=base, new=new, current=added, lease_path="/s")


def test_a_nested_catalog_in_use_is_not_removed_and_nothing_goes_into_a_removed_one(repository: EditedStore) -> None:
    base = based_on(repository, repository.root, ("nested", "/s"), ("nested", "/s/p"))
    removed = based_on(repository, base, ("remove", "/s"))
    edit = repository.edit(base)
    edit.hang(*repository.nested("/s/p", {"work": file()}))
    published = repository.keep(edit)
    with refused(BaseChanged, path="/s"):
        merge(repository.cache, base=base, new=removed, current=published, lease_path="/s")
    with refused(BaseChanged, path="/s/p"):
        merge(repository.cache, base=base, new=published, current=removed, lease_path="/s/p")


# -- transitions


def test_plain_becomes_nested_and_plain_again_while_others_publish_elsewhere(repository: EditedStore) -> None:
    plain = based_on(repository, repository.root, ("dir", "/d"), ("dir", "/d/e"), ("file", "/d/e/f", "1"))
    nested = based_on(
        repository, plain, ("remove", "/d"), ("nested", "/d"), ("nested", "/d/e"), ("file", "/d/e/f", "1")
    )
    current = based_on(repository, plain, ("nested", "/other"))
    merged = merge(repository.cache, base=plain, new=nested, current=current, lease_path="/d")
    now_nested = repository.keep(merged)
    seen = assert_consistent(repository.cache, now_nested)
    assert seen["/d"].mountpoint
    assert seen["/d/e"].mountpoint
    assert f"/d/{MARKER}" in seen

    again = based_on(repository, now_nested, ("remove", "/d"), ("dir", "/d"), ("dir", "/d/e"), ("file", "/d/e/f", "1"))
    current = based_on(repository, now_nested, ("file", "/third", "3"))
    merged = merge(repository.cache, base=now_nested, new=again, current=current, lease_path="/d")
    seen = kept(repository, merged)
    assert not seen["/d"].mountpoint
    assert {path for path in seen if path.startswith("/d")} == {"/d", "/d/e", "/d/e/f"}
    assert "/third" in seen


def test_the_root_directory_itself_changes_under_a_lease_on_everything(repository: EditedStore) -> None:
    edit = repository.edit()
    edit.touch("", DIRECTORY.changed(uid=7, mode=stat.S_IFDIR | 0o750))
    new = repository.keep(edit)
    current = based_on(repository, repository.root, ("dir", "/d"))
    root = repository.keep(merge(repository.cache, base=repository.root, new=new, current=current, lease_path=""))
    assert_consistent(repository.cache, root)
    entry = Revision(repository.cache, root).lookup("")
    assert entry is not None
    assert (entry.uid, stat.S_IMODE(entry.mode), entry.linkcount) == (7, 0o750, 3)


def test_a_mountpoint_has_the_row_of_its_catalog(repository: EditedStore) -> None:
    base = based_on(repository, repository.root, ("nested", "/p"))
    edit = repository.edit(base)
    reference, entry, totals = repository.nested("/p", {"f": file()})
    edit.hang(NestedRef("/p", reference.hash, 0), entry.changed(uid=999, linkcount=5), totals)
    new = repository.keep(edit)
    seen = kept(repository, merge(repository.cache, base=base, new=new, current=base, lease_path="/p"))
    assert (seen["/p"].uid, seen["/p"].linkcount) == (0, 2)


# -- hard links


def linked(repository: EditedStore, base: ObjectHash, names: str, content: bytes = b"x") -> ObjectHash:
    edit = repository.edit(base)
    for old in edit.listing("/d"):
        edit.remove(f"/d/{old.name}")
    for name in names:
        group = {"linkcount": len(names), "hardlink_group": 1} if len(names) > 1 else {}
        edit.add(f"/d/{name}", file(content, **group))
    return repository.keep(edit)


@pytest.mark.parametrize(("before", "after"), [("ab", "abc"), ("abc", "ab"), ("ab", "b"), ("b", "ab"), ("abc", "bcd")])
def test_hard_links_come_and_go_with_their_count(repository: EditedStore, before: str, after: str) -> None:
    empty = based_on(repository, repository.root, ("dir", "/d"), ("dir", "/e"))
    base = linked(repository, empty, before)
    new = linked(repository, base, after)
    current = based_on(repository, base, ("nested", "/e/n"))
    seen = kept(repository, merge(repository.cache, base=base, new=new, current=current, lease_path="/d"))
    links = {path: entry for path, entry in seen.items() if path.startswith("/d/")}
    assert sorted(links) == [f"/d/{name}" for name in after]
    assert {entry.linkcount for entry in links.values()} == {len(after)}
    assert len({entry.hardlink_group for entry in links.values()}) == 1
    assert all(bool(entry.hardlink_group) == (len(after) > 1) for entry in links.values())


def test_names_that_change_partners_are_linked_as_the_change_wants_it(repository: EditedStore) -> None:
    base = based_on(repository, repository.root, ("dir", "/d"))

    def pairs(*groups: str) -> ObjectHash:
        edit = repository.edit(base)
        for number, names in enumerate(groups, 1):
            for name in names:
                edit.add(f"/d/{name}", file(b"x", linkcount=2, hardlink_group=number))
        return repository.keep(edit)

    old, new = pairs("ab", "ce"), pairs("ac", "be")
    seen = kept(repository, merge(repository.cache, base=old, new=new, current=old, lease_path="/d"))
    groups = {name: seen[f"/d/{name}"].hardlink_group for name in "abce"}
    assert groups["a"] == groups["c"] != groups["b"] == groups["e"]


def test_taking_one_of_several_links_away_leaves_the_others_with_the_right_count(repository: EditedStore) -> None:
    base = linked(repository, based_on(repository, repository.root, ("dir", "/d")), "abc")
    for name, left, group in (("a", 2, True), ("b", 1, False)):
        base = based_on(repository, base, ("remove", f"/d/{name}"))
        links = Revision(repository.cache, base).listing("/d")
        assert {entry.linkcount for entry in links} == {left}
        assert all(bool(entry.hardlink_group) is group for entry in links)
        assert_consistent(repository.cache, base)


# -- names


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_names_of_all_kinds_and_deep_paths_are_merged_with_every_hash_algorithm(algorithm: Algorithm) -> None:
    repository = EditedStore(algorithm=algorithm)
    composed, decomposed = (unicodedata.normalize(form, "/é ü") for form in ("NFC", "NFD"))
    strange = [composed, decomposed, "/with space", "/%41'\";--", "/" + "n" * 200, "/-rf", "/..x", "/日本", "/a\tb"]
    one, other = repository.edit(), repository.edit()
    for place, name in enumerate(strange):
        (one.make_nested if place % 2 else one.add)(name, DIRECTORY)
        one.add(f"{name}{name}", file(name.encode()))
    deep = ""
    for level in range(50):
        deep += f"/{'d' * (200 if level % 10 == 0 else 2)}"
        (other.make_nested if level % 7 == 3 else other.add)(deep, DIRECTORY)
    other.add(f"{deep}/f", file())
    new, current = repository.keep(other), repository.keep(one)
    new = repository.keep(merge(repository.cache, base=repository.root, new=new, current=current, lease_path=""))
    seen = assert_consistent(repository.cache, new)
    assert new.algorithm is algorithm
    assert {f"{name}{name}" for name in strange} < set(seen)
    assert f"{deep}/f" in seen
    assert composed != decomposed


# -- against a model

SPOTS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/p", "/a/x/q", "/b/x/p"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["file", "dir", "nested", "remove"]), SPOTS, st.sampled_from(["1", "2"])), max_size=10
)
LEASES = st.sampled_from(["", "/a", "/a/x", "/b", "/a/x/p"])


def attempted(repository: EditedStore, base: ObjectHash, steps: list[tuple[str, str, str]], inside: str) -> ObjectHash:
    """Take the steps that are possible, below ``inside`` only."""
    edit = repository.edit(base)
    for verb, path, content in steps:
        if not is_below(path, inside):
            continue
        try:
            if verb == "file":
                edit.add(path, file(content.encode()))
            elif verb == "remove":
                edit.remove(path)
            else:
                (edit.make_nested if verb == "nested" else edit.add)(path, DIRECTORY)
        except DestinationError:
            continue
    return repository.keep(edit)


def told(repository: EditedStore, root: ObjectHash) -> dict[str, str]:
    """Entries by path, as text that does not depend on catalogs and links."""
    return {
        path: f"nested {entry.mountpoint}" if entry.is_directory else str(entry.hash)
        for path, entry in assert_consistent(repository.cache, root).items()
    }


@pytest.mark.slow
@settings(max_examples=80)
@given(STEPS, STEPS, STEPS, LEASES)
def test_a_merge_does_the_change_and_keeps_others(steps: list, mine: list, theirs: list, lease: str) -> None:
    repository = EditedStore()
    base = attempted(repository, repository.root, steps, "")
    new = attempted(repository, base, mine, lease)
    current = attempted(repository, base, theirs, "")
    was, wanted, is_now = (told(repository, root) for root in (base, new, current))
    try:
        merged = merge(repository.cache, base=base, new=new, current=current, lease_path=lease)
    except (BaseChanged, MergeError) as refused:
        # Only what others did is a reason to refuse; a lease below a file is none at all.
        assert theirs or "must be a directory" in str(refused)  # noqa: PT017
        return
    settled = repository.keep(merged)
    result = told(repository, settled)
    for path in was.keys() | wanted.keys() | is_now.keys() | result.keys():
        before, change, there = was.get(path), wanted.get(path), is_now.get(path)
        expected = there if change == before else change
        assert result.get(path) == expected, path
        assert before == there or change in (before, there), f"{path} was reverted"
    repeated = merge(repository.cache, base=base, new=new, current=settled, lease_path=lease)
    assert not repeated.changed, "a repeated commit finds nothing to do"
