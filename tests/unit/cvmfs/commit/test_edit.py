"""Edits rewrite what they must, keep counters and links exact, and leave hidden entries and bind mountpoints alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.check.check_catalog import Mounted, audit
from include.cvmfs.check.findings import Findings
from include.cvmfs.commit.commit import read_head, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import CatalogError, DestinationError, MergeError
from include.cvmfs.format.catalog import MARKER, Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent, Flag
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compressor
from include.cvmfs.format.paths import name_of, parent_of
from include.cvmfs.ingest.autocatalog import Cuts, Weights
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.revision.get import get
from include.cvmfs.revision.revision import Revision, diff
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.dirtab import Dirtab
from include.cvmfs.sources.source import IdMap, OwnerMap, TreeSource
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import packed
from tests.fakes.commits import commit_change
from tests.fakes.edits import EditedStore, assert_consistent, file
from tests.fakes.local import CHUNKS, DIRECTORY, ODD_TREES, LocalRepository, make_folder, read_folder
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, signer
from tests.fakes.refused import refused


def remove_twice(edit: Edit, path: str) -> None:
    edit.remove(path)
    assert edit.inside(path).path == ""
    edit.remove(path)


def test_lookups_see_at_once_where_a_catalog_begins_or_ends(repository: EditedStore) -> None:
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


def test_hanging_swaps_a_nested_catalog_and_corrects_counters_up_to_the_root(repository: EditedStore) -> None:
    edit = repository.edit()
    edit.make_nested("/s", DIRECTORY)
    edit.make_nested("/s/p", DIRECTORY)
    root = repository.keep(edit)
    again = repository.edit(root)
    again.hang(*repository.nested("/s/p", {"one": file(b"1"), "two": file(b"22")}))
    new = again.finish(2)
    assert [made.hash for made in new.catalogs][-1] == new.hash
    assert len(new.catalogs) == 2, "only the catalogs above the destination are rewritten"
    for made in new.catalogs:
        repository.store.put(made.hash.key, made.data)
    seen = assert_consistent(repository.cache, new.hash)
    assert seen["/s/p/two"].size == 2
    assert Revision(repository.cache, new.hash).root.previous_revision == root


def test_a_file_at_the_destination_is_not_overwritten(repository: EditedStore) -> None:
    edit = repository.edit()
    edit.add("/f", file())
    with refused(DestinationError, path="/f"):
        edit.hang(*repository.nested("/f", {}))


names = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["file", "dir", "nested", "remove"])


@settings(max_examples=80)
@given(st.lists(st.tuples(st.lists(names, min_size=1, max_size=3), kinds, st.integers(0, 3)), max_size=25))
def test_any_sequence_of_edits_leaves_consistent_catalogs(steps: list[tuple[list[str], str, int]]) -> None:
    repository = EditedStore()
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


def test_a_catalog_that_grows_too_large_is_refused_before_it_is_stored(repository: EditedStore) -> None:
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


# -- hidden entries and bind mountpoints


REVISIONS = [Catalog.create("", DIRECTORY.changed(mtime=number)).pack() for number in range(2)]
SHOWN = NestedRef("/.cvmfs/v1", REVISIONS[0].hash, REVISIONS[0].size)


class Virtual(EditedStore):
    """A repository whose root has a hidden directory with a bind mountpoint, as stock tools make for snapshots."""

    def __init__(self) -> None:
        catalog = Catalog.create("", DIRECTORY.changed(linkcount=4))
        catalog.add("/.cvmfs", DIRECTORY.changed(name=".cvmfs", hidden=True, linkcount=3))
        catalog.add(SHOWN.path, DIRECTORY.changed(name="v1", bind=True, hidden=True))
        catalog.set_bind(SHOWN)
        catalog.add("/sw", DIRECTORY.changed(name="sw"))
        super().__init__(catalog)
        for shown in REVISIONS:
            self.store.put(shown.hash.key, shown.data)

    def assert_kept(self, edit: Edit) -> Revision:
        view = Revision(self.cache, self.keep(edit))
        above, below = view.lookup("/.cvmfs"), view.lookup(SHOWN.path)
        assert above is not None
        assert below is not None
        assert above.flags == Flag.DIRECTORY | Flag.HIDDEN
        assert below.flags == Flag.DIRECTORY | Flag.HIDDEN | Flag.BIND
        catalog = view.root
        assert [bind.path for bind in catalog.binds()] == [SHOWN.path]
        assert view.holder(SHOWN.path).bind_at(SHOWN.path) == SHOWN
        assert catalog.statistics.own.nested == len(catalog.nested())
        return view


@pytest.fixture
def virtual() -> Virtual:
    return Virtual()


def test_edits_beside_them_leave_them(virtual: Virtual) -> None:
    edit = virtual.edit()
    edit.add("/sw/f", file())
    edit.hang(*virtual.nested("/sw/tree"))
    edit.touch("", DIRECTORY.changed(mtime=7))
    edit.move("/sw/f", "/g")
    edit.remove("/g")
    virtual.assert_kept(edit)


def test_attributes_of_a_bind_mountpoint_change_and_it_stays_one(virtual: Virtual) -> None:
    edit = virtual.edit()
    below = edit.lookup(SHOWN.path)
    assert below is not None
    edit.touch(SHOWN.path, below.changed(mtime=77))
    view = virtual.assert_kept(edit)
    assert view.lookup(SHOWN.path) == below.changed(mtime=77)


@pytest.mark.parametrize("path", [SHOWN.path, "/.cvmfs"])
def test_a_removed_bind_mountpoint_is_no_longer_registered(virtual: Virtual, path: str) -> None:
    edit = virtual.edit()
    edit.remove(path)
    view = Revision(virtual.cache, virtual.keep(edit))
    assert [bind.path for bind in view.root.binds()] == []
    assert view.lookup(SHOWN.path) is None


def test_a_bind_mountpoint_that_moves_is_registered_where_it_went(virtual: Virtual) -> None:
    edit = virtual.edit()
    edit.move(SHOWN.path, "/.cvmfs/v2")
    view = Revision(virtual.cache, virtual.keep(edit))
    assert view.holder("/.cvmfs/v2").bind_at("/.cvmfs/v2") == NestedRef("/.cvmfs/v2", SHOWN.hash, SHOWN.size)
    assert [bind.path for bind in view.root.binds()] == ["/.cvmfs/v2"]


OTHER = NestedRef("", REVISIONS[1].hash, REVISIONS[1].size)


def put(edit: Edit, what: str) -> None:
    """Put an entry of that kind at /sw/x."""
    match what:
        case "file":
            edit.add("/sw/x", file())
        case "empty" | "hidden":
            edit.add("/sw/x", DIRECTORY.changed(hidden=what == "hidden"))
        case "directory":
            edit.add("/sw/x", DIRECTORY)
            edit.add("/sw/x/d", DIRECTORY)
            for number in range(3):
                edit.add(f"/sw/x/d/{number}", file())
        case "nested":
            edit.make_nested("/sw/x", DIRECTORY)
        case "bound" | "bound otherwise" | "bound and hidden":
            shows = OTHER if what == "bound otherwise" else SHOWN
            edit.add("/sw/x", DIRECTORY.changed(bind=True, hidden="hidden" in what), shows=shows)


THINGS = ["nothing", "file", "empty", "hidden", "directory", "nested", "bound", "bound otherwise", "bound and hidden"]


@pytest.mark.parametrize(("before", "after"), [pair for pair in permutations(THINGS, 2) if "bound" in "".join(pair)])
def test_a_merge_puts_a_bind_mountpoint_in_any_place(virtual: Virtual, before: str, after: str) -> None:
    edit = virtual.edit()
    put(edit, before)
    base = virtual.keep(edit)
    edit = virtual.edit(base)
    if before != "nothing":
        edit.remove("/sw/x")
    put(edit, after)
    new = virtual.keep(edit)
    beside = virtual.edit(base)
    beside.add("/f", file())
    merged = virtual.keep(merge(virtual.cache, base=base, new=new, current=virtual.keep(beside), lease_path="/sw/x"))
    findings = Findings()
    audit(Mounted("", merged, 0), virtual.cache.database(merged), findings, lambda *_: None)
    assert findings.problems == []
    [change] = diff(Revision(virtual.cache, new), Revision(virtual.cache, merged))
    assert change.path == "/f"


def test_nothing_is_put_below_a_bind_mountpoint(virtual: Virtual) -> None:
    edit = virtual.edit()
    path = f"{SHOWN.path}/f"
    for put_there in (
        lambda: edit.add(path, file()),
        lambda: edit.make_nested(path, DIRECTORY),
        lambda: edit.move("/sw", path),
        lambda: edit.hang(*virtual.nested(path)),
    ):
        with refused(DestinationError, path=path):
            put_there()


@pytest.mark.parametrize("files", [1, 100], ids=["few", "copied by rows"])
def test_no_merge_puts_anything_below_a_bind_mountpoint(virtual: Virtual, files: int) -> None:
    edit = virtual.edit()
    edit.add("/sw/x", DIRECTORY)
    base = virtual.keep(edit)
    filled, bound = (virtual.edit(base) for _ in range(2))
    for number in range(files):
        filled.add(f"/sw/x/{number}", file())
    bound.remove("/sw/x")
    put(bound, "bound")
    with refused(MergeError, path="/sw/x"):
        merge(virtual.cache, base=base, new=virtual.keep(filled), current=virtual.keep(bound), lease_path="/sw")


def test_a_hidden_mountpoint_stays_hidden_when_its_tree_is_replaced(virtual: Virtual) -> None:
    edit = virtual.edit()
    reference, root_entry, totals = virtual.nested("/sw/tree")
    edit.hang(reference, root_entry.changed(hidden=True), totals)
    again = virtual.edit(virtual.keep(edit))
    again.hang(*virtual.nested("/sw/tree"))
    entry = Revision(virtual.cache, virtual.keep(again)).lookup("/sw/tree")
    assert entry is not None
    assert entry.hidden
    assert entry.mountpoint


# -- any tree


Nodes = dict[str, dict[str, Any]]
OPTIONS = st.fixed_dictionaries(
    {
        "owner": st.sampled_from([None, (5, 6), OwnerMap(IdMap({0: 2, 2: 1}), IdMap({0: 3}, 9))]),
        "mtime": st.sampled_from([None, 77]),
        "external": st.booleans(),
        "cuts": st.sampled_from([Cuts(), Cuts(Dirtab.parse("/sw/x/*\n! */b\n")), Cuts(auto=Weights(5, 2))]),
    }
)
PLACES = st.sampled_from(["/x", "/sw/x", "/sw/deep/er/x"])


def without_root_marker(tree: dict[str, Any]) -> dict[str, Any]:
    """It is made where the tree has none."""
    return {path: facts for path, facts in tree.items() if path != ".cvmfscatalog"}


@pytest.mark.slow
@settings(max_examples=25)
@given(nodes=ODD_TREES, place=PLACES, algorithm=st.sampled_from(list(Algorithm)), how=st.sampled_from(list(Compressor)))
def test_a_tree_comes_back_as_it_was(nodes: Nodes, place: str, algorithm: Algorithm, how: Compressor) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary) / "tree", nodes)
        repository = LocalRepository(algorithm)
        repository.publish(folder, place, compressor=how)
        assert repository.problems() == []
        done = get(repository.opened().revision, place, Path(temporary) / "back")
        assert without_root_marker(read_folder(Path(temporary) / "back")) == without_root_marker(read_folder(folder))
        assert done.skipped == done.kept == 0
        again = get(repository.opened().revision, place, Path(temporary) / "back")
        assert again.kept == again.files == done.files
        assert without_root_marker(read_folder(Path(temporary) / "back")) == without_root_marker(read_folder(folder))


@pytest.mark.slow
@settings(max_examples=20)
@given(before_it=ODD_TREES, nodes=ODD_TREES, options=OPTIONS)
def test_a_tree_that_goes_again_leaves_the_old_counters_and_entries(
    before_it: Nodes, nodes: Nodes, options: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        repository = LocalRepository()
        repository.publish(make_folder(Path(temporary) / "before", before_it), "/sw/there")
        before, entries = repository.statistics(), everything(repository)
        repository.publish(make_folder(Path(temporary) / "tree", nodes), "/sw/x", **options)
        assert repository.problems() == []
        assert repository.statistics() != before
        repository.change(lambda edit: edit.remove("/sw/x"))
        assert repository.statistics() == before
        assert everything(repository) == entries
        assert repository.problems() == []


@pytest.mark.slow
@settings(max_examples=12)
@given(trees=st.tuples(ODD_TREES, ODD_TREES, ODD_TREES), gone=st.booleans())
def test_the_order_of_disjoint_changes_is_of_no_effect(trees: tuple[Nodes, Nodes, Nodes], gone: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folders = [make_folder(Path(temporary) / str(number), nodes) for number, nodes in enumerate(trees)]
        begun = LocalRepository()
        begun.publish(folders[0], "/sw/p")
        begun.publish(folders[1], "/sw/q")
        replaced = changed(begun.store, lambda edit: hang(begun.store, edit, folders[2], "/sw/p"))
        other = changed(
            begun.store, lambda edit: edit.remove("/sw/q") if gone else hang(begun.store, edit, folders[2], "/sw/q")
        )
        results = []
        for order in ((replaced, other), (other, replaced)):
            repository = LocalRepository(store=MemoryStore())
            repository.store.objects = dict(begun.store.objects)
            base = read_head(repository.store, FQRN).manifest.root
            for new, lease in ((new, "/sw/p" if new is replaced else "/sw/q") for new in order):
                commit_change(
                    repository.store, fqrn=FQRN, signer=signer(), lease_path=lease, old_root=base, new_root=new,
                    now=int(NOW.timestamp()),
                )  # fmt: skip
            assert repository.problems() == []
            results.append((everything(repository), repository.statistics()))
        assert results[0] == results[1]


@pytest.mark.slow
@settings(max_examples=25)
@given(nodes=ODD_TREES)
def test_a_folder_and_its_archive_are_the_same_tree(nodes: Nodes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary) / "tree", nodes)
        # an archive of the standard library tells neither attributes nor sockets, and writes 1e-09 for a time
        options = PrepareOptions(chunking=CHUNKS, specials=Specials.SKIP, mtime=77)

        def root(source: TreeSource) -> ObjectHash:
            return prepare(source, store=MemoryStore(), fqrn=FQRN, destination="/x", now=NOW, options=options).root

        archive = packed(folder, change=lambda member: member.replace(mtime=0, deep=False))
        assert root(DirectorySource(folder)) == root(TarSource(iter([archive]), "x.tar"))


def everything(repository: LocalRepository) -> list[tuple[str, Dirent]]:
    return list(repository.opened().revision.walk())


def changed(store: MemoryStore, apply: Callable[[Edit], object]) -> ObjectHash:
    """A revision that is stored and not switched to."""
    edit = Edit(CatalogCache(store), read_head(store, FQRN).manifest.root)
    apply(edit)
    new = edit.finish(int(NOW.timestamp()))
    store_all(store, [(one.hash.key, one.data) for one in new.catalogs] + list(new.objects))
    return new.hash


def hang(store: MemoryStore, edit: Edit, folder: Path, destination: str) -> None:
    options = PrepareOptions(
        layout=Layout.MTIME_NS, chunking=CHUNKS, mtime_ns=True, specials=Specials.KEEP, xattrs=("user.",)
    )
    changeset = prepare(
        DirectorySource(folder), store=store, fqrn=FQRN, destination=destination, now=NOW, options=options
    )
    edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
