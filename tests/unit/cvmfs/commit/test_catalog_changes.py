"""Nested catalogs that a change brings: one that is of no use is refused to its sender, and hinders no other."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.collect.scan import ScanCache, walk
from include.cvmfs.commit import catalog_changes
from include.cvmfs.commit.catalog_changes import CatalogComparison, Names
from include.cvmfs.commit.commit import Change, Head, commit_group, read_head, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import BaseChanged, CvmfsError, MergeError, ObjectMissing
from include.cvmfs.format.catalog import Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.revision import Revision
from tests.fakes.edits import LATER, EditedStore, assert_consistent, change, file, stored
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, signer
from tests.fakes.refused import refused

FILE = Dirent("file", stat.S_IFREG | 0o644, size=5, hash=hash_bytes(b"content"))
BIG = (1 << 63) - 1


def damaged(*statements: str) -> Callable[[bytes], bytes]:
    def damage(database: bytes) -> bytes:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(database)
        for statement in statements:
            connection.executescript(statement)
        return connection.serialize()

    return damage


def bringing(
    store: MemoryStore, path: str, damage: Callable[[bytes], bytes], *, inner: Callable[[bytes], bytes] | None = None
) -> Change:
    """A change that puts a nested catalog at ``path``, with another one at ``inside``, below it, damaged both."""
    head = read_head(store, FQRN).manifest
    below = Catalog.create(f"{path}/inside", DIRECTORY)
    below.add(f"{path}/inside/file", FILE)
    inside = PackedCatalog.of((inner or bytes)(below.to_bytes()))
    top = Catalog.create(path, DIRECTORY.changed(linkcount=3))
    top.add(f"{path}/file", FILE)
    top.add(f"{path}/inside", DIRECTORY.changed(name="inside", mountpoint=True))
    top.set_nested(NestedRef(f"{path}/inside", inside.hash, inside.size), below.statistics.total)
    new = PackedCatalog.of(damage(top.to_bytes()))
    edit = Edit(CatalogCache(store), head.root)
    edit.hang(NestedRef(path, new.hash, new.size), DIRECTORY, Counts())
    root = edit.finish(1)
    objects = [(packed.hash.key, packed.data) for packed in (*root.catalogs, new, inside)]
    store_all(store, objects)
    return Change(path, head.root, root.hash)


def commit(store: MemoryStore, *changes: Change) -> list[Head | Exception]:
    return commit_group(store, changes, fqrn=FQRN, signer=signer(), now=LATER)


def assert_refused_alone(
    store: MemoryStore, folder: Path, bad: Change, kind: type[Exception] = MergeError
) -> Exception:
    """A change is refused, and the one beside it in its group is not."""
    refusal, outcome = commit(store, bad, Change("/good", *change(store, "/good")))
    assert isinstance(refusal, kind), refusal
    assert isinstance(outcome, Head)
    assert_goes_on(store, folder)
    return refusal


def assert_goes_on(store: MemoryStore, folder: Path) -> None:
    """Others commit, and a collection reads all that it has to keep."""
    [outcome] = commit(store, Change("/later", *change(store, "/later")))
    assert isinstance(outcome, Head)
    walk(ScanCache(store, folder), [outcome.manifest.root], set(), lambda *_: None)


DAMAGES = {
    "a counter of the range's end": f"UPDATE statistics SET value = {BIG} WHERE counter = 'self_regular'",
    "a negative counter": "UPDATE statistics SET value = -1001 WHERE counter = 'self_dir'",
    "a negative counter below": "UPDATE statistics SET value = -5000 WHERE counter = 'subtree_file_size'",
    "more bytes than there are": f"UPDATE statistics SET value = {1 << 60} WHERE counter = 'subtree_file_size'",
    "a counter of text": "UPDATE statistics SET value = 'many' WHERE counter = 'self_regular'",
    "the name ..": "UPDATE catalog SET name = '..' WHERE name = 'file'",
    "a slash": "UPDATE catalog SET name = 'a/b' WHERE name = 'file'",
    "a NUL": "UPDATE catalog SET name = 'a' || char(0) || 'b' WHERE name = 'file'",
    "no name": "UPDATE catalog SET name = '' WHERE name = 'file'",
    "a long name": "UPDATE catalog SET name = printf('%.300c', 'x') WHERE name = 'file'",
    "a name of bytes": "UPDATE catalog SET name = CAST(name AS BLOB) WHERE name = 'file'",
    "a short hash": "UPDATE catalog SET hash = x'0102' WHERE name = 'file'",
    "a hash of text": "UPDATE catalog SET hash = 'none' WHERE name = 'file'",
    "an unknown algorithm": "UPDATE catalog SET flags = flags | (5 << 8) WHERE name = 'file'",
    "a chunk without a hash": "INSERT INTO chunks SELECT md5path_1, md5path_2, 0, 5, NULL FROM catalog",
    "a negative size": "UPDATE catalog SET size = -7 WHERE name = 'file'",
    "a size of the range's end": f"UPDATE catalog SET size = {BIG} WHERE name = 'file'",
    "a reference outside": "UPDATE nested_catalogs SET path = '/victim'",
    "a reference to itself": "UPDATE nested_catalogs SET path = '/q'",
    "a reference without a mountpoint": "UPDATE nested_catalogs SET path = '/q/file'",
    "a mountpoint without a reference": "DELETE FROM nested_catalogs",
    "a reference that is no hash": "UPDATE nested_catalogs SET sha1 = 'zz'",
    "a bind that is no hash": "INSERT INTO bind_mountpoints VALUES ('/q/file', 'zz', 0)",
    "a previous revision that is no hash": "INSERT OR REPLACE INTO properties VALUES ('previous_revision', 'zz')",
    "a revision that is no number": "INSERT OR REPLACE INTO properties VALUES ('revision', 'first')",
    "a newer schema": "UPDATE properties SET value = '9.0' WHERE key = 'schema'",
    "another path": "UPDATE properties SET value = '/elsewhere' WHERE key = 'root_prefix'",
    "no root": "DELETE FROM catalog WHERE flags & 32",
    "no rows": "DROP TABLE catalog",
    "a view without an end": (
        "ALTER TABLE nested_catalogs RENAME TO kept; CREATE VIEW nested_catalogs AS "
        "WITH RECURSIVE n(path) AS (SELECT '/q/a' UNION ALL SELECT path || 'a' FROM n) "
        "SELECT path, '' sha1, 0 size FROM n"
    ),
    "a trigger": "CREATE TRIGGER t AFTER UPDATE ON catalog BEGIN DELETE FROM catalog; END",
}


PLACES = [
    (what, where) for what, statement in DAMAGES.items() for where in ("top", "inner")
    if where == "top" or "nested_catalogs" not in statement
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("what", "where"), PLACES)
def test_a_useless_catalog_is_refused_alone(store: MemoryStore, tmp_path: Path, what: str, where: str) -> None:
    statement = DAMAGES[what]
    if where == "inner":
        statement = statement.replace("/q/", "/q/inside/")
    damage = {"top": (damaged(statement), None), "inner": (bytes, damaged(statement))}[where]
    bad = bringing(store, "/q", damage[0], inner=damage[1])
    assert str(assert_refused_alone(store, tmp_path, bad)).startswith("merge at /q")


@pytest.mark.parametrize("where", ["top", "inner"])
def test_a_catalog_that_is_no_database_is_refused_alone(store: MemoryStore, tmp_path: Path, where: str) -> None:
    damage = {"top": bytes, "inner": bytes} | {where: lambda _: b"no database"}
    assert_refused_alone(store, tmp_path, bringing(store, "/q", damage["top"], inner=damage["inner"]))


def test_a_catalog_that_is_not_stored_is_refused_alone(store: MemoryStore, tmp_path: Path) -> None:
    absent = ObjectHash.parse("ab" * 20, suffix=CATALOG)
    bad = bringing(store, "/q", damaged(f"UPDATE nested_catalogs SET sha1 = '{absent}'"))
    refusal = assert_refused_alone(store, tmp_path, bad, ObjectMissing)
    assert getattr(refusal, "key", "") == absent.key


@pytest.mark.parametrize("size", [BIG, -1])
@pytest.mark.parametrize("within", ["", "/d"])
def test_a_file_of_no_real_size_is_refused_alone(store: MemoryStore, tmp_path: Path, size: int, within: str) -> None:
    head = read_head(store, FQRN).manifest
    edit = Edit(CatalogCache(store), head.root)
    edit.add("/q", DIRECTORY.changed(name="q"))
    if within:
        edit.add("/q/d", DIRECTORY.changed(name="d"))
    edit.add(f"/q{within}/f", FILE.changed(name="f", size=size))
    new = stored(store, edit)
    assert_refused_alone(store, tmp_path, Change("/q", head.root, new))


def test_counters_at_the_end_of_the_range_hinder_no_commit(store: MemoryStore, tmp_path: Path) -> None:
    head = read_head(store, FQRN).manifest
    edit = Edit(CatalogCache(store), head.root)
    edit.root._count(Counts(regular=BIG, file_size=BIG))
    edit.add("/old", DIRECTORY.changed(name="old"))
    new = stored(store, edit)
    [outcome] = commit(store, Change("", head.root, new))
    assert isinstance(outcome, Head)
    assert_goes_on(store, tmp_path)


def test_counters_that_stock_tools_lost_count_of_are_taken(store: MemoryStore, tmp_path: Path) -> None:
    """Seen in a repository in use: cvmfs/cvmfs#4397."""
    lost = damaged("UPDATE statistics SET value = -2 WHERE counter IN ('self_xattr', 'subtree_xattr')")
    outcomes = commit(store, bringing(store, "/q", lost), Change("/good", *change(store, "/good")))
    assert all(isinstance(outcome, Head) for outcome in outcomes), outcomes
    assert_goes_on(store, tmp_path)


def test_what_the_base_has_in_its_place_is_not_read_again(store: MemoryStore) -> None:
    [outcome] = commit(store, bringing(store, "/q", bytes))
    assert isinstance(outcome, Head)
    inside = CatalogCache(store).open_nested("/q", _nested(store, outcome.manifest.root, "/q").hash).nested()[0]
    read: list[str] = []
    again = bringing(store, "/q", damaged("UPDATE properties SET value = '5' WHERE key = 'revision'"))
    store.before = lambda verb, key: read.append(key) if verb == "get" else None
    [outcome] = commit(store, again)
    assert isinstance(outcome, Head)
    assert inside.hash.with_suffix(CATALOG).key not in read


def _nested(store: MemoryStore, root: ObjectHash, path: str) -> NestedRef:
    reference = CatalogCache(store).open(root).nested_at(path)
    assert reference is not None
    return reference


# -- many rows at a time


XATTR = bytes.fromhex("01010803757365722e666f6f626172")
MANY = 300  # more differences than are compared row by row


@pytest.fixture(params=["compared by SQLite, in small batches", "read whole, in one batch"])
def repository(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EditedStore:
    if "small" in request.param:
        monkeypatch.setattr(catalog_changes, "SMALL_BYTES", 0)
        monkeypatch.setattr(catalog_changes, "_BATCH", 2)
    return EditedStore()


def after(repository: EditedStore, root: ObjectHash, change: Callable[[Edit], object]) -> ObjectHash:
    edit = repository.edit(root)
    change(edit)
    return repository.keep(edit)


def everything(edit: Edit, top: str) -> None:
    """A tree with one of everything, three catalogs deep."""
    edit.add(top, DIRECTORY)
    edit.add(f"{top}/empty", DIRECTORY.changed(uid=7, xattr=XATTR))
    edit.add(f"{top}/plain", file(b"plain", uid=1000, gid=1001))
    edit.add(f"{top}/stored", file(b"s").changed(compression=Compression.NONE, mtime_ns=5))
    shake = hash_bytes(b"s", Algorithm.SHAKE128)
    edit.add(f"{top}/shake", file(b"s").changed(hash=shake, algorithm=Algorithm.SHAKE128))
    edit.add(f"{top}/named", file(b"n").changed(xattr=XATTR))
    edit.add(f"{top}/hidden", file(b"h").changed(hidden=True))
    edit.add(f"{top}/outside", file(b"e").changed(external=True))
    edit.add(f"{top}/é ü", Dirent("", stat.S_IFLNK | 0o777, size=2, symlink="ü"))
    edit.add(f"{top}/pipe", Dirent("", stat.S_IFIFO | 0o600))
    edit.add(f"{top}/tty", Dirent("", stat.S_IFCHR | 0o600, size=1280))
    chunks = [Chunk(10 * n, 10, hash_bytes(b"%d" % n, suffix="P")) for n in range(3)]
    edit.add(f"{top}/big", Dirent("", stat.S_IFREG | 0o644, size=30, chunked=True, mtime=1), chunks)
    for folder in ("a", "b"):
        edit.add(f"{top}/{folder}", DIRECTORY)
        for name in ("one", "two"):
            edit.add(f"{top}/{folder}/{name}", file(b"x", linkcount=2, hardlink_group=1 if folder == "a" else 2))
    edit.add(f"{top}/a/deep", DIRECTORY)
    edit.add(f"{top}/a/deep/deeper", DIRECTORY)
    edit.make_nested(f"{top}/a/deep/nested", DIRECTORY)
    edit.add(f"{top}/a/deep/nested/inner", file(b"inner"))
    edit.make_nested(f"{top}/a/deep/nested/more", DIRECTORY)
    other = Catalog.create("/of/another", DIRECTORY).pack()
    edit.catalogs.store.put(other.hash.key, other.data)
    shown = NestedRef(f"{top}/bound", other.hash, other.size)
    edit.add(f"{top}/bound", DIRECTORY.changed(bind=True), shows=shown)


def ungrouped(entries: dict[str, Dirent]) -> dict[str, Dirent]:
    return {path: entry.changed(hardlink_group=0) for path, entry in entries.items()}


def test_a_new_tree_of_everything_is_as_its_publisher_made_it(repository: EditedStore) -> None:
    base = after(repository, repository.root, lambda edit: edit.make_nested("/sw", DIRECTORY))
    new = after(repository, base, lambda edit: everything(edit, "/sw/new"))

    def links(edit: Edit) -> None:
        edit.add("/sw/others", DIRECTORY)
        for name in "xy":
            edit.add(f"/sw/others/{name}", file(b"l", linkcount=2, hardlink_group=1))

    current = after(repository, base, links)
    merged = repository.keep(merge(repository.cache, base=base, new=new, current=current, lease_path="/sw/new"))
    seen, wanted = assert_consistent(repository.cache, merged), assert_consistent(repository.cache, new)
    below = {path: entry for path, entry in seen.items() if path.startswith("/sw/new")}
    assert ungrouped(below) == ungrouped({path: one for path, one in wanted.items() if path.startswith("/sw/new")})
    groups = {path: entry.hardlink_group for path, entry in seen.items() if entry.hardlink_group}
    assert len(groups) == 6
    assert len(set(groups.values())) == 3
    one, other = Revision(repository.cache, merged), Revision(repository.cache, new)
    assert one.chunks("/sw/new/big") == other.chunks("/sw/new/big") != ()
    shown = [side.holder("/sw/new/bound").bind_at("/sw/new/bound") for side in (one, other)]
    assert shown[0] == shown[1] is not None
    assert one.nested_at("/sw/new/a/deep/nested") == other.nested_at("/sw/new/a/deep/nested") is not None


def names(edit: Edit, content: str, numbers: range, folder: str = "/d") -> None:
    for number in numbers:
        path = f"{folder}/f{number}"
        if edit.lookup(path) is not None:
            edit.remove(path)
        if content:
            edit.add(path, file(f"{content}{number}".encode()))


def contents(repository: EditedStore, root: ObjectHash) -> dict[str, ObjectHash | None]:
    found = assert_consistent(repository.cache, root)
    return {path: entry.hash for path, entry in found.items() if not entry.is_directory}


def test_many_files_of_a_directory_come_change_and_go_beside_the_work_of_others(repository: EditedStore) -> None:
    def start(edit: Edit) -> None:
        edit.add("/d", DIRECTORY)
        names(edit, "a", range(2 * MANY))

    def change(edit: Edit) -> None:
        names(edit, "b", range(MANY // 2))
        names(edit, "", range(MANY // 2, MANY))
        names(edit, "c", range(2 * MANY, 3 * MANY))

    base = after(repository, repository.root, start)
    new = after(repository, base, change)
    current = after(repository, base, lambda edit: names(edit, "z", range(MANY, MANY + 5)))
    merged = repository.keep(merge(repository.cache, base=base, new=new, current=current, lease_path="/d"))
    expected = contents(repository, new)
    expected |= {f"/d/f{n}": hash_bytes(f"z{n}".encode()) for n in range(MANY, MANY + 5)}
    assert contents(repository, merged) == expected
    again = merge(repository.cache, base=base, new=new, current=merged, lease_path="/d")
    assert not again.changed


PATHS = [f"/{one}{two}" for one in "abc" for two in ("", "/d", "/d/f", "/d/g", "/e", "/e/f")]
STEPS = st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(["", "dir", "nested", "big", "x", "y"])), max_size=9)


def take(edit: Edit, steps: list[tuple[str, str]]) -> None:
    """Put something at each path, or remove what is there; a step that cannot be taken is left out."""
    for path, what in steps:
        with suppress(CvmfsError):
            if edit.lookup(path) is not None:
                edit.remove(path)
            if what == "dir":
                edit.add(path, DIRECTORY)
            elif what == "nested":
                edit.make_nested(path, DIRECTORY)
            elif what == "big":
                pieces = [Chunk(0, 5, hash_bytes(b"%d" % len(steps), suffix="P"))]
                edit.add(path, Dirent("", stat.S_IFREG | 0o644, size=5, chunked=True, mtime=1), pieces)
            elif what:
                edit.add(path, file(what.encode()))


@given(STEPS, STEPS)
def test_a_comparison_finds_the_same_however_it_is_made(first: list[tuple[str, str]], second: list[tuple[str, str]]):
    repository = EditedStore()
    everywhere = [(path, "dir") for path in PATHS if not path.endswith(("f", "g"))]
    before = after(repository, repository.root, lambda edit: take(edit, everywhere + first))
    catalogs = [repository.cache.open(root) for root in (before, after(repository, before, lambda e: take(e, second)))]

    def found(**limits: int) -> Names:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in limits.items():
                patch.setattr(catalog_changes, name, value)
            comparison = CatalogComparison(repository.cache, catalogs[0])
            names = comparison.names(catalogs[1])
            comparison.close()
        assert names is not None
        return names

    read = found()
    assert found(SMALL_BYTES=0) == read
    by_key = found(SMALL_BYTES=0, _FEW=-1)  # of what only one side has it names the top
    of_both = {path for path in read if all(catalog.lookup(path) for catalog in catalogs)}
    assert {path: by_key.get(path) for path in of_both} == {path: read[path] for path in of_both}


@pytest.mark.parametrize("theirs", ["other", ""], ids=["changed", "removed"])
@pytest.mark.parametrize("mine", ["b", ""], ids=["change", "remove"])
def test_one_of_many_that_another_touched_stops_all(repository: EditedStore, mine: str, theirs: str) -> None:
    def start(edit: Edit) -> None:
        edit.add("/d", DIRECTORY)
        names(edit, "a", range(MANY))

    base = after(repository, repository.root, start)
    new = after(repository, base, lambda edit: names(edit, mine, range(MANY)))
    current = after(repository, base, lambda edit: names(edit, theirs, range(7, 8)))
    if mine == theirs == "":
        merged = merge(repository.cache, base=base, new=new, current=current, lease_path="/d")
        assert contents(repository, repository.keep(merged)) == {}
        return
    with refused(BaseChanged, path="/d/f7"):
        merge(repository.cache, base=base, new=new, current=current, lease_path="/d")


def test_a_large_directory_that_both_sides_made_holds_what_both_put_into_it(repository: EditedStore) -> None:
    def made(content: str, numbers: range) -> Callable[[Edit], None]:
        def make(edit: Edit) -> None:
            for folder in ("/d", "/d/inner"):
                edit.add(folder, DIRECTORY)
                names(edit, content, numbers, folder)

        return make

    base = repository.root
    new = after(repository, base, made("a", range(MANY)))
    current = after(repository, base, made("b", range(MANY, MANY + 3)))
    merged = repository.keep(merge(repository.cache, base=base, new=new, current=current, lease_path="/d"))
    assert contents(repository, merged) == contents(repository, new) | contents(repository, current)


HOSTILE = {
    "a name that climbs": ("UPDATE catalog SET name = '..' WHERE name = 'f'", ()),
    "a name with a slash": ("UPDATE catalog SET name = 'a/b' WHERE name = 'f'", ()),
    "no name": ("UPDATE catalog SET name = '' WHERE name = 'f'", ()),
    "an empty name": ("UPDATE catalog SET name = NULL WHERE name = 'f'", ()),
    "a name that is bytes": ("UPDATE catalog SET name = CAST(? AS BLOB) WHERE name = 'f'", (b"f",)),
    "a row at another place": ("UPDATE catalog SET md5path_1 = 1 WHERE name = 'f'", ()),
    "a row below another parent": ("UPDATE catalog SET parent_1 = 1 WHERE name = 'inner'", ()),
    "a mode that is text": ("UPDATE catalog SET mode = 'x' WHERE name = 'f'", ()),
    "a mode that is too large": ("UPDATE catalog SET mode = 1 << 40 WHERE name = 'f'", ()),
    "flags that are text": ("UPDATE catalog SET flags = 'x' WHERE name = 'f'", ()),
    "flags of no algorithm": ("UPDATE catalog SET flags = 4 | 7 << 8 WHERE name = 'f'", ()),
    "a hash that is too short": ("UPDATE catalog SET hash = ? WHERE name = 'f'", (b"short",)),
    "a hash that is text": ("UPDATE catalog SET hash = 'x' WHERE name = 'f'", ()),
    "a size that is no number": ("UPDATE catalog SET size = 'much' WHERE name = 'f'", ()),
    "a count of links that is no number": ("UPDATE catalog SET hardlinks = 'x' WHERE name = 'f'", ()),
    "an empty owner": ("UPDATE catalog SET uid = NULL WHERE name = 'f'", ()),
    "an attribute that is a number": ("UPDATE catalog SET xattr = 5 WHERE name = 'f'", ()),
    "a directory that says it is a file": ("UPDATE catalog SET mode = 33188 WHERE name = 'inner'", ()),
    "a mountpoint of nothing": ("UPDATE catalog SET flags = 3 WHERE name = 'inner'", ()),
    "a chunk with half a hash": ("INSERT INTO chunks SELECT md5path_1, md5path_2, 0, 1, x'00' FROM catalog WHERE name='big'", ()),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_rows_that_no_publisher_writes_are_an_error_of_ours_or_harmless(repository: EditedStore, name: str) -> None:
    def change(edit: Edit) -> None:
        edit.add("/d", DIRECTORY)
        edit.add("/d/f", file())
        edit.add("/d/big", Dirent("", stat.S_IFREG | 0o644, size=3, chunked=True, mtime=1))
        edit.add("/d/inner", DIRECTORY)
        edit.add("/d/inner/g", file())

    new = repository.edit()
    change(new)
    database = new.finish(1).catalogs[-1]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(repository.cache.database(database.hash))
    connection.execute(*HOSTILE[name])
    damaged = PackedCatalog.of(connection.serialize())
    repository.store.put(damaged.hash.key, damaged.data)
    edit = repository.edit()
    try:
        merged = merge(
            repository.cache, base=repository.root, new=damaged.hash, current=repository.root, lease_path="/d"
        )
    except CvmfsError:
        edit.close()
        return
    entries = assert_consistent(repository.cache, repository.keep(merged))
    assert set(entries) <= {"/d", "/d/f", "/d/big", "/d/inner", "/d/inner/g"}
