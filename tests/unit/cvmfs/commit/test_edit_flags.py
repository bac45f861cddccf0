"""Hidden entries and bind mountpoints are not ours to make; edits and merges around them leave them as they are."""

from __future__ import annotations

import stat
from itertools import permutations

import pytest

from include.cvmfs.check.check_catalog import Mounted, audit
from include.cvmfs.check.findings import Findings
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import DestinationError, MergeError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent, Flag
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.diff import diff
from include.cvmfs.revision.revision import Revision
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)
FILE = Dirent("", stat.S_IFREG | 0o644, size=1, hash=hash_bytes(b"x"))
REVISIONS = [Catalog.create("", DIRECTORY.changed(mtime=number)).pack() for number in range(2)]
SHOWN = NestedRef("/.cvmfs/v1", REVISIONS[0].hash, REVISIONS[0].size)


class Virtual:
    """A repository whose root has a hidden directory with a bind mountpoint, as stock tools make for snapshots."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.cache = CatalogCache(self.store)
        catalog = Catalog.create("", DIRECTORY.changed(linkcount=4))
        catalog.add("/.cvmfs", DIRECTORY.changed(name=".cvmfs", hidden=True, linkcount=3))
        catalog.add(SHOWN.path, DIRECTORY.changed(name="v1", bind=True, hidden=True))
        catalog.set_bind(SHOWN)
        catalog.add("/sw", DIRECTORY.changed(name="sw"))
        packed = catalog.pack()
        for stored in (packed, *REVISIONS):
            self.store.put(stored.hash.key, stored.data)
        self.root = packed.hash

    def keep(self, edit: Edit) -> ObjectHash:
        new = edit.finish(1)
        for packed in new.catalogs:
            self.store.put(packed.hash.key, packed.data)
        return new.hash

    def nested(self, path: str) -> tuple[NestedRef, Dirent, Counts]:
        catalog = Catalog.create(path, DIRECTORY)
        catalog.add(f"{path}/.cvmfscatalog", FILE.changed(name=".cvmfscatalog"))
        packed = catalog.pack()
        self.store.put(packed.hash.key, packed.data)
        return NestedRef(path, packed.hash, packed.size), catalog.root_entry, catalog.statistics.total

    def assert_kept(self, root: ObjectHash) -> Revision:
        view = Revision(self.cache, root)
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


def test_edits_beside_them_leave_them() -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    edit.add("/sw/f", FILE)
    edit.hang(*repository.nested("/sw/tree"))
    edit.touch("", DIRECTORY.changed(mtime=7))
    edit.move("/sw/f", "/g")
    edit.remove("/g")
    repository.assert_kept(repository.keep(edit))


def test_attributes_of_a_bind_mountpoint_change_and_it_stays_one() -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    below = edit.lookup(SHOWN.path)
    assert below is not None
    edit.touch(SHOWN.path, below.changed(mtime=77))
    view = repository.assert_kept(repository.keep(edit))
    assert view.lookup(SHOWN.path) == below.changed(mtime=77)


def test_a_removed_bind_mountpoint_is_registered_no_more() -> None:
    for path in (SHOWN.path, "/.cvmfs"):
        repository = Virtual()
        edit = Edit(repository.cache, repository.root)
        edit.remove(path)
        view = Revision(repository.cache, repository.keep(edit))
        assert [bind.path for bind in view.root.binds()] == []
        assert view.lookup(SHOWN.path) is None


def test_a_bind_mountpoint_that_moves_is_registered_where_it_went() -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    edit.move(SHOWN.path, "/.cvmfs/v2")
    view = Revision(repository.cache, repository.keep(edit))
    assert view.holder("/.cvmfs/v2").bind_at("/.cvmfs/v2") == NestedRef("/.cvmfs/v2", SHOWN.hash, SHOWN.size)
    assert [bind.path for bind in view.root.binds()] == ["/.cvmfs/v2"]


def test_a_merge_takes_over_what_was_bound_and_keeps_what_is() -> None:
    repository = Virtual()
    bound = Edit(repository.cache, repository.root)
    bound.add("/sw/old", DIRECTORY.changed(bind=True, hidden=True), shows=NestedRef("/sw/old", SHOWN.hash, 0))
    beside = Edit(repository.cache, repository.root)
    beside.add("/f", FILE)
    edit = merge(
        repository.cache,
        base=repository.root,
        new=repository.keep(bound),
        current=repository.keep(beside),
        lease_path="/sw",
    )
    view = Revision(repository.cache, repository.keep(edit))
    assert [bind.path for bind in view.root.binds()] == [SHOWN.path, "/sw/old"]
    old = view.lookup("/sw/old")
    assert old is not None
    assert (old.bind, old.hidden) == (True, True)


OTHER = NestedRef("", REVISIONS[1].hash, REVISIONS[1].size)


def put(edit: Edit, what: str) -> None:
    """Let something stand at /sw/x."""
    match what:
        case "file":
            edit.add("/sw/x", FILE)
        case "empty" | "hidden":
            edit.add("/sw/x", DIRECTORY.changed(hidden=what == "hidden"))
        case "directory":
            edit.add("/sw/x", DIRECTORY)
            edit.add("/sw/x/d", DIRECTORY)
            for number in range(3):
                edit.add(f"/sw/x/d/{number}", FILE)
        case "nested":
            edit.make_nested("/sw/x", DIRECTORY)
        case "bound" | "bound otherwise" | "bound and hidden":
            shows = OTHER if what == "bound otherwise" else SHOWN
            edit.add("/sw/x", DIRECTORY.changed(bind=True, hidden="hidden" in what), shows=shows)


THINGS = ["nothing", "file", "empty", "hidden", "directory", "nested", "bound", "bound otherwise", "bound and hidden"]


@pytest.mark.parametrize(("before", "after"), [pair for pair in permutations(THINGS, 2) if "bound" in "".join(pair)])
def test_a_merge_puts_a_bind_mountpoint_in_the_place_of_anything_and_takes_it_away(before: str, after: str) -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    put(edit, before)
    base = repository.keep(edit)
    edit = Edit(repository.cache, base)
    if before != "nothing":
        edit.remove("/sw/x")
    put(edit, after)
    new = repository.keep(edit)
    merged = repository.keep(merge(repository.cache, base=base, new=new, current=base, lease_path="/sw/x"))
    findings = Findings()
    audit(Mounted("", merged, 0), repository.cache.database(merged), findings, lambda *_: None)
    assert findings.problems == []
    assert list(diff(Revision(repository.cache, new), Revision(repository.cache, merged))) == []


def test_nothing_is_put_below_a_bind_mountpoint() -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    path = f"{SHOWN.path}/f"
    for put_there in (
        lambda: edit.add(path, FILE),
        lambda: edit.make_nested(path, DIRECTORY),
        lambda: edit.move("/sw", path),
        lambda: edit.hang(*repository.nested(path)),
    ):
        with refused(DestinationError, path=path):
            put_there()


@pytest.mark.parametrize("files", [1, 100], ids=["few", "copied by rows"])
def test_no_merge_puts_anything_below_a_bind_mountpoint(files: int) -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    edit.add("/sw/x", DIRECTORY)
    base = repository.keep(edit)
    filled, bound = (Edit(repository.cache, base) for _ in range(2))
    for number in range(files):
        filled.add(f"/sw/x/{number}", FILE)
    bound.remove("/sw/x")
    put(bound, "bound")
    with refused(MergeError, path="/sw/x"):
        merge(
            repository.cache, base=base, new=repository.keep(filled), current=repository.keep(bound), lease_path="/sw"
        )


def test_a_hidden_mountpoint_stays_hidden_when_its_tree_is_replaced() -> None:
    repository = Virtual()
    edit = Edit(repository.cache, repository.root)
    reference, root_entry, totals = repository.nested("/sw/tree")
    edit.hang(reference, root_entry.changed(hidden=True), totals)
    again = Edit(repository.cache, repository.keep(edit))
    again.hang(*repository.nested("/sw/tree"))
    entry = Revision(repository.cache, repository.keep(again)).lookup("/sw/tree")
    assert entry is not None
    assert entry.hidden
    assert entry.mountpoint
