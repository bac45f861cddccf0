"""Nested catalogs that a change brings: one that is of no use is refused to its sender, and hinders no other."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from include.cvmfs.collect.scan import ScanCache, walk
from include.cvmfs.commit.commit import Change, Head, commit_group, read_head, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import MergeError, ObjectMissing
from include.cvmfs.format.catalog import Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, ObjectHash, hash_bytes
from include.cvmfs.format.schema import Counts
from tests.fakes.edits import LATER, change, stored
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, signer

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
