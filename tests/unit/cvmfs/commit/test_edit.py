"""Edits and merges rewrite what they must, keep all counters and links exact, and never take back others' work."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.cvmfs.commit.edit import Edit, NewRoot
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import BaseChanged, CatalogError, DestinationError, MergeError
from include.cvmfs.format.catalog import MARKER, Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.format.paths import name_of, parent_of
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.revision import Revision
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)


def file(content: bytes = b"x", **fields: int) -> Dirent:
    return Dirent("", stat.S_IFREG | 0o644, size=len(content), hash=hash_bytes(content), **fields)


class Repository:
    """A store with a root catalog; each step makes a revision."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.cache = CatalogCache(self.store)
        packed = Catalog.create("", DIRECTORY).pack()
        self.store.put(packed.hash.key, packed.data)
        self.root = packed.hash

    def edit(self, base: ObjectHash | None = None) -> Edit:
        return Edit(self.cache, base or self.root)

    def keep(self, edit: Edit, now: int = 1) -> ObjectHash:
        new: NewRoot = edit.finish(now)
        for packed in new.catalogs:
            self.store.put(packed.hash.key, packed.data)
        return new.hash

    def nested(self, path: str, files: dict[str, Dirent]) -> tuple[NestedRef, Dirent, Counts]:
        """A prepared flat tree, stored, ready to be hung."""
        catalog = Catalog.create(path, DIRECTORY)
        for name, entry in {MARKER: file(b""), **files}.items():
            catalog.add(f"{path}/{name}", entry.changed(name=name))
        packed = catalog.pack()
        self.store.put(packed.hash.key, packed.data)
        return NestedRef(path, packed.hash, packed.size), catalog.root_entry, catalog.statistics.total


@pytest.fixture
def repository() -> Repository:
    return Repository()


def assert_consistent(cache: CatalogCache, root: ObjectHash) -> dict[str, Dirent]:
    """Recount a revision from its rows; returns all its entries by path."""
    seen: dict[str, Dirent] = {}

    def catalog_of(path: str, hash_: ObjectHash) -> Counts:
        catalog = cache.open(hash_)
        own, below = Counts(), Counts()

        def walk(directory: str, row: Dirent) -> None:
            nonlocal own, below
            children = catalog.listing(directory)
            assert row.linkcount == 2 + sum(child.is_directory for child in children), directory
            for child in children:
                here = f"{directory}/{child.name}"
                seen[here] = child
                own += Counts.of(child, len(catalog.chunks(here, child)))
                if child.mountpoint:
                    reference = catalog.nested_at(here)
                    assert reference is not None
                    assert reference.size == len(cache.database(reference.hash))
                    inner = cache.open(reference.hash).root_entry
                    assert inner.changed(mountpoint=True, nested_root=False) == child
                    own += Counts(nested=1)
                    below += catalog_of(here, reference.hash)
                elif child.is_directory:
                    walk(here, child)

        top = catalog.root_entry
        own += Counts.of(top)
        walk(path, top)
        assert catalog.statistics.own == own, path
        assert catalog.statistics.below == below, path
        assert catalog.row_count() == own.entries
        return own + below

    catalog_of("", root)
    return seen


def test_skeleton_of_nested_catalogs_has_exact_counters(repository: Repository) -> None:
    edit = repository.edit()
    edit.make_nested("/a", DIRECTORY)
    edit.add("/a/plain", DIRECTORY)
    edit.make_nested("/a/plain/b", DIRECTORY)
    edit.add("/a/plain/b/f", file())
    seen = assert_consistent(repository.cache, repository.keep(edit))
    assert set(seen) == {"/a", f"/a/{MARKER}", "/a/plain", "/a/plain/b", f"/a/plain/b/{MARKER}", "/a/plain/b/f"}


def remove_twice(edit: Edit, path: str) -> None:
    edit.remove(path)
    assert edit.inside(path).path == ""
    edit.remove(path)


def test_lookups_see_at_once_where_a_catalog_begins_or_ends(repository: Repository) -> None:
    edit = repository.edit()
    edit.add("/a", DIRECTORY)
    for _ in range(2):
        assert edit.lookup("/a/n/f") is None
        edit.make_nested("/a/n", DIRECTORY)
        edit.add("/a/n/f", file())
        assert edit.inside("/a/n").path == "/a/n"
        edit.move("/a/n", "/a/m")
        assert edit.lookup("/a/n/f") is None
        assert edit.inside("/a/m").path == "/a/m"
        with pytest.raises(DestinationError), edit.attempt():
            remove_twice(edit, "/a/m")
        assert edit.lookup("/a/m/f") is not None
        edit.remove("/a/m")
        assert edit.lookup("/a/m/f") is None
    assert_consistent(repository.cache, repository.keep(edit))


def test_hanging_swaps_a_nested_catalog_and_corrects_counters_up_to_the_root(repository: Repository) -> None:
    edit = repository.edit()
    edit.make_nested("/s", DIRECTORY)
    edit.make_nested("/s/p", DIRECTORY)
    root = repository.keep(edit)
    again = repository.edit(root)
    again.hang(*repository.nested("/s/p", {"one": file(b"1"), "two": file(b"22")}))
    new = again.finish(2)
    assert [packed.hash for packed in new.catalogs][-1] == new.hash
    assert len(new.catalogs) == 2, "only the catalogs above the destination are rewritten"
    for packed in new.catalogs:
        repository.store.put(packed.hash.key, packed.data)
    seen = assert_consistent(repository.cache, new.hash)
    assert seen["/s/p/two"].size == 2
    assert Revision(repository.cache, new.hash).root.previous_revision == root


def test_publish_then_remove_gives_the_old_counters_back(repository: Repository) -> None:
    edit = repository.edit()
    edit.make_nested("/s", DIRECTORY)
    base = repository.keep(edit)
    edit = repository.edit(base)
    edit.hang(*repository.nested("/s/p", {"one": file(b"1")}))
    hung = repository.keep(edit)
    edit = repository.edit(hung)
    edit.remove("/s/p")
    removed = repository.keep(edit)
    before, after = (Revision(repository.cache, root).root for root in (base, removed))
    assert before.statistics == after.statistics
    assert_consistent(repository.cache, removed)


@pytest.mark.parametrize("path", ["/absent/x", "/f/x"])
def test_a_missing_or_wrong_parent_is_refused(repository: Repository, path: str) -> None:
    edit = repository.edit()
    edit.add("/f", file())
    with refused(DestinationError, path=path):
        edit.add(path, file())


def test_a_file_at_the_destination_is_not_overwritten(repository: Repository) -> None:
    edit = repository.edit()
    edit.add("/f", file())
    with refused(DestinationError, path="/f"):
        edit.hang(*repository.nested("/f", {}))


def two_destinations(repository: Repository) -> ObjectHash:
    edit = repository.edit()
    edit.make_nested("/s", DIRECTORY)
    for name in "pq":
        edit.make_nested(f"/s/{name}", DIRECTORY)
    return repository.keep(edit)


def hung(repository: Repository, base: ObjectHash, path: str, content: bytes) -> ObjectHash:
    edit = repository.edit(base)
    edit.hang(*repository.nested(path, {"f": file(content)}))
    return repository.keep(edit)


def test_disjoint_changes_of_one_base_are_both_kept_in_either_order(repository: Repository) -> None:
    base = two_destinations(repository)
    p, q = hung(repository, base, "/s/p", b"p"), hung(repository, base, "/s/q", b"q")
    trees = []
    for first, second, lease in ((p, q, "/s/q"), (q, p, "/s/p")):
        merged = merge(repository.cache, base=base, new=second, current=first, lease_path=lease)
        trees.append(assert_consistent(repository.cache, repository.keep(merged)))
    assert trees[0] == trees[1]
    assert {"/s/p/f", "/s/q/f"} <= set(trees[0])


def test_a_stale_base_is_refused_and_nothing_is_reverted(repository: Repository) -> None:
    base = two_destinations(repository)
    first, second = hung(repository, base, "/s/p", b"1"), hung(repository, base, "/s/p", b"2")
    with refused(BaseChanged, path="/s/p"):
        merge(repository.cache, base=base, new=second, current=first, lease_path="/s/p")


def test_a_change_that_already_stands_changes_nothing(repository: Repository) -> None:
    base = two_destinations(repository)
    first = hung(repository, base, "/s/p", b"1")
    assert not merge(repository.cache, base=base, new=first, current=first, lease_path="/s/p").changed


def test_a_change_outside_of_the_lease_is_refused_by_name(repository: Repository) -> None:
    base = two_destinations(repository)
    with refused(MergeError, path="/s/q"):
        merge(repository.cache, base=base, new=hung(repository, base, "/s/q", b"1"), current=base, lease_path="/s/p")


def test_new_directories_come_with_their_nested_catalogs(repository: Repository) -> None:
    base = two_destinations(repository)
    edit = repository.edit(base)
    edit.make_nested("/s/r", DIRECTORY)
    edit.add("/s/r/deep", DIRECTORY)
    edit.add("/s/r/deep/f", file())
    edit.make_nested("/s/r/deep/n", DIRECTORY)
    new = repository.keep(edit)
    current = hung(repository, base, "/s/p", b"p")
    merged = merge(repository.cache, base=base, new=new, current=current, lease_path="/s/r")
    seen = assert_consistent(repository.cache, repository.keep(merged))
    assert {"/s/r/deep/n", "/s/r/deep/f", "/s/p/f"} <= set(seen)


def test_owner_and_attribute_changes_are_merged(repository: Repository) -> None:
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


def test_hard_links_keep_a_group_of_their_own_when_merged(repository: Repository) -> None:
    edit = repository.edit()
    edit.add("/d", DIRECTORY)
    base = repository.keep(edit)
    roots = []
    for name in ("m", "n"):
        edit = repository.edit(base)
        edit.add(f"/d/{name}", DIRECTORY)
        for link in ("1", "2"):
            edit.add(f"/d/{name}/{link}", file(linkcount=2, hardlink_group=1))
        roots.append(repository.keep(edit))
    merged = merge(repository.cache, base=base, new=roots[1], current=roots[0], lease_path="/d/n")
    seen = assert_consistent(repository.cache, repository.keep(merged))
    groups = {path: entry.hardlink_group for path, entry in seen.items() if entry.is_regular}
    assert groups["/d/m/1"] == groups["/d/m/2"] != groups["/d/n/1"] == groups["/d/n/2"]


names = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["file", "dir", "nested", "remove"])


@settings(max_examples=150)
@given(st.lists(st.tuples(st.lists(names, min_size=1, max_size=3), kinds, st.integers(0, 3)), max_size=25))
def test_any_sequence_of_edits_leaves_consistent_catalogs(steps: list[tuple[list[str], str, int]]) -> None:
    repository = Repository()
    root = repository.root
    model: dict[str, str] = {}
    edit = repository.edit()
    for components, kind, close in steps:
        path = "/" + "/".join(components)
        parent = parent_of(path)
        if kind == "remove":
            if path not in model:
                with pytest.raises(DestinationError):
                    edit.remove(path)
                continue
            edit.remove(path)
            model = {known: what for known, what in model.items() if known != path and not known.startswith(path + "/")}
        elif path in model or (parent and model.get(parent) not in {"dir", "nested"}):
            with pytest.raises(DestinationError):
                edit.add(path, file())
            continue
        else:
            if kind == "file":
                edit.add(path, file(path.encode()))
            elif kind == "dir":
                edit.add(path, DIRECTORY)
            else:
                edit.make_nested(path, DIRECTORY)
            model[path] = kind
        if close == 0:
            root = repository.keep(edit)
            edit = repository.edit(root)
    root = repository.keep(edit)
    seen = assert_consistent(repository.cache, root)
    assert {path for path in seen if name_of(path) != MARKER} == set(model)


leaves = st.dictionaries(st.tuples(names, names), st.tuples(st.binary(max_size=3), st.integers(0, 2)), max_size=6)


@pytest.mark.slow
@settings(max_examples=60)
@given(leaves, leaves)
def test_merging_disjoint_changes_commutes(left: dict, right: dict) -> None:
    repository = Repository()
    base = two_destinations(repository)

    def changed(top: str, tree: dict) -> ObjectHash:
        edit = repository.edit(base)
        for (directory, name), (content, nested) in tree.items():
            if edit.lookup(f"{top}/{directory}") is None:
                (edit.make_nested if nested == 0 else edit.add)(f"{top}/{directory}", DIRECTORY)
            edit.add(f"{top}/{directory}/{name}", file(content))
        return repository.keep(edit)

    p, q = changed("/s/p", left), changed("/s/q", right)
    one = merge(repository.cache, base=base, new=q, current=p, lease_path="/s/q")
    other = merge(repository.cache, base=base, new=p, current=q, lease_path="/s/p")
    trees = [assert_consistent(repository.cache, repository.keep(edit)) for edit in (one, other)]
    assert trees[0] == trees[1]


def test_a_catalog_that_grows_too_large_is_refused_before_it_is_stored(repository: Repository) -> None:
    edit = repository.edit()
    edit.make_nested("/n", DIRECTORY)
    for name in "abc":
        edit.add(f"/n/{name}", file())
    edit.require_room(nested=5, root=2)
    with refused(CatalogError, path="/n"):
        edit.require_room(nested=4, root=2)
    with refused(CatalogError, path=""):
        edit.require_room(nested=0, root=1)
    edit.require_room(nested=0, root=0)
    again = repository.edit(repository.keep(edit))
    again.remove("/n/a")
    again.require_room(nested=2, root=1)  # what shrinks, or stays as large, may be too large still
    again.add("/n/d", file())
    again.add("/n/e", file())
    with refused(CatalogError, path="/n"):
        again.require_room(nested=2, root=1)
