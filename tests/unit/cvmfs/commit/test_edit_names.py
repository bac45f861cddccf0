"""Names as repositories have them: bytes that are not UTF-8 are kept, and shown in a form that any log can hold.

Names that no catalog may have are refused by prepare, merge and get alike, and named by check.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import BaseChanged, CatalogError, DestinationError, MergeError, SourceError
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash, hash_bytes, path_hash
from include.cvmfs.format.objects import compress
from include.cvmfs.format.paths import bytes_of_name, name_fault
from include.cvmfs.revision.get import get
from include.cvmfs.revision.repository import Repository as Opened
from include.cvmfs.revision.revision import diff
from include.cvmfs.sources.source import checked_member
from tests.fakes.edits import EditedStore, assert_consistent, file
from tests.fakes.local import DIRECTORY, LocalRepository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, public_key, sample
from tests.fakes.refused import refused

LATIN = "caf\udce9"  # b"caf\xe9"
LINK = Dirent("", stat.S_IFLNK | 0o777, size=4, symlink=LATIN)


@pytest.fixture
def local() -> LocalRepository:
    """A repository with an entry of each kind below a directory whose name is not UTF-8, three catalogs deep."""
    local = LocalRepository()
    content = hash_bytes(compress(b"coffee"))
    local.store.put(content.key, compress(b"coffee"))
    coffee = Dirent("", stat.S_IFREG | 0o644, size=6, hash=content)

    def fill(edit: Edit) -> None:
        for place in ("/d", f"/d/{LATIN}"):
            edit.add(place, DIRECTORY)
        edit.add(f"/d/{LATIN}/\udcff.txt", coffee)
        edit.add(f"/d/{LATIN}/link", LINK)
        edit.make_nested(f"/d/{LATIN}/n\udce9", DIRECTORY)
        edit.add(f"/d/{LATIN}/n\udce9/f", coffee)
        edit.make_nested(f"/d/{LATIN}/n\udce9/m", DIRECTORY)

    local.change(fill)
    return local


def below(local: LocalRepository, top: str) -> set[str]:
    return {path[len(top) :] for path, _ in local.opened().revision.walk(top)}


def test_the_hash_of_a_path_is_that_of_its_bytes() -> None:
    assert path_hash(f"/d/{LATIN}") == struct.unpack("<qq", hashlib.md5(b"/d/caf\xe9").digest())


def test_a_catalog_holds_the_bytes_as_text(repository: EditedStore) -> None:
    edit = repository.edit()
    edit.make_nested(f"/{LATIN}", DIRECTORY)
    edit.add(f"/{LATIN}/{LATIN}.txt", file())
    edit.add(f"/{LATIN}/link", LINK)
    root = repository.keep(edit)
    above, inner = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    above.deserialize(repository.cache.database(root))
    reference = repository.cache.open(root).nested_at(f"/{LATIN}")
    assert reference is not None
    inner.deserialize(repository.cache.database(reference.hash))
    ours = "SELECT typeof(path), hex(path) FROM nested_catalogs"
    assert above.execute(ours).fetchall() == [("text", b"/caf\xe9".hex().upper())]
    prefix = "SELECT typeof(value), hex(value) FROM properties WHERE key = 'root_prefix'"
    assert inner.execute(prefix).fetchall() == [("text", b"/caf\xe9".hex().upper())]
    rows = inner.execute("SELECT typeof(name), hex(name), typeof(symlink), hex(symlink) FROM catalog").fetchall()
    assert ("text", b"caf\xe9.txt".hex().upper(), "text", "") in rows
    assert ("text", b"link".hex().upper(), "text", b"caf\xe9".hex().upper()) in rows


def test_a_name_of_a_stock_publisher_is_listed_removed_and_replaced(repository: EditedStore) -> None:
    catalog = sqlite3.connect(":memory:", isolation_level=None)
    catalog.deserialize(repository.cache.database(repository.root))
    place = struct.unpack("<qq", hashlib.md5(b"/caf\xe9").digest())
    catalog.execute(
        "INSERT INTO catalog (md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size, mode, mtime, flags,"
        " name, symlink, uid, gid) VALUES (?,?,?,?,1,?,1,33188,0,4,CAST(x'636166e9' AS TEXT),'',0,0)",
        (*place, *path_hash(""), hash_bytes(b"x").digest),
    )
    catalog.execute("UPDATE statistics SET value = value + 1 WHERE counter IN ('self_regular', 'self_file_size')")
    packed = Catalog.load(catalog.serialize()).pack()
    repository.store.put(packed.hash.key, packed.data)
    edit = repository.edit(packed.hash)
    assert [entry.name for entry in edit.listing("")] == [LATIN]
    edit.move(f"/{LATIN}", "/\udcff")
    assert set(assert_consistent(repository.cache, repository.keep(edit))) == {"/\udcff"}
    edit = repository.edit(packed.hash)
    edit.remove(f"/{LATIN}")
    edit.add(f"/{LATIN}", LINK)
    root = repository.keep(edit)
    assert assert_consistent(repository.cache, root)[f"/{LATIN}"].symlink == LATIN
    assert not edit.symlink(f"/{LATIN}", LATIN, now=1)


@pytest.mark.parametrize("others", [1, 100], ids=["few", "copied by rows"])
def test_changes_of_such_names_are_merged(repository: EditedStore, others: int) -> None:
    edit = repository.edit()
    edit.add("/d", DIRECTORY)
    base = repository.keep(edit)
    added = repository.edit(base)
    for number in range(others):
        added.add(f"/d/{number}\udce9", file(b"1"))
    added.add(f"/d/new{LATIN}", DIRECTORY)
    added.add(f"/d/new{LATIN}/link", LINK)
    added.make_nested(f"/d/new{LATIN}/{LATIN}", DIRECTORY)
    first = repository.keep(merge(repository.cache, base=base, new=repository.keep(added), current=base, lease_path=""))
    assert len(assert_consistent(repository.cache, first)) == 1 + others + 4
    changed, removed = repository.edit(first), repository.edit(first)
    for number in range(others):
        for edit in (changed, removed):
            edit.remove(f"/d/{number}\udce9")
        changed.add(f"/d/{number}\udce9", file(b"22"))
    new = repository.keep(changed)
    second = repository.keep(merge(repository.cache, base=first, new=new, current=first, lease_path="/d"))
    assert assert_consistent(repository.cache, second)["/d/0\udce9"].size == 2
    with refused(BaseChanged, path="/d/0\udce9"):
        merge(repository.cache, base=first, new=repository.keep(removed), current=second, lease_path="/d")


def test_a_tree_with_such_names_is_moved_checked_and_removed(local: LocalRepository) -> None:
    before = below(local, f"/d/{LATIN}")
    assert local.problems() == []
    local.change(lambda edit: edit.move(f"/d/{LATIN}", "/\udcfe"))
    assert local.problems() == []
    assert below(local, "/\udcfe") == before
    local.change(lambda edit: edit.move("/\udcfe", f"/d/{LATIN}\udce8"))
    assert local.problems() == []
    local.change(lambda edit: edit.remove("/d"))
    assert local.problems() == []
    assert below(local, "") == {""}


def test_a_catalog_that_several_threads_read_is_asked_with_what_can_be_bound(repository: EditedStore) -> None:
    """An error of binding would be lost: sqlite3 may raise the one of another thread in its place."""

    class Strict:
        def __init__(self, db: sqlite3.Connection) -> None:
            self.db = db

        def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
            assert [value for value in values if isinstance(value, str) and LATIN in value] == []
            return self.db.execute(sql, values)

    edit = repository.edit()
    edit.make_nested(f"/{LATIN}", DIRECTORY)
    catalog = repository.cache.open(repository.keep(edit))
    catalog._db = Strict(catalog._db)
    assert catalog.nested_at(f"/{LATIN}") is not None


def test_such_names_come_to_disk_as_they_are(local: LocalRepository, tmp_path: Path) -> None:
    get(local.opened().revision, "/d", tmp_path / "out")
    out = tmp_path / "out" / LATIN
    assert (out / "\udcff.txt").read_bytes() == b"coffee"
    assert os.fsencode((out / "link").readlink()) == b"caf\xe9"
    assert get(local.opened().revision, "/d", tmp_path / "out").kept == 4


def test_differences_and_errors_hold_text_that_any_encoder_takes(local: LocalRepository) -> None:
    before = local.opened()
    local.change(lambda edit: edit.remove(f"/d/{LATIN}/\udcff.txt"))
    changes = list(diff(before.revision, local.opened().revision))
    assert json.dumps([change.as_dict() for change in changes], ensure_ascii=False).encode()
    assert str(changes[-1]).encode() == b"- /d/caf\\udce9/\\udcff.txt"
    with pytest.raises(CatalogError) as caught:
        local.opened().revision.entry(f"/d/{LATIN}/absent")
    assert str(caught.value).encode().startswith(b"/d/caf\\udce9/absent: no such file")
    with refused(DestinationError, path=f"/d/{LATIN}") as taken:
        Edit(CatalogCache(local.store), local.opened().manifest.root).add(f"/d/{LATIN}", DIRECTORY)
    assert str(taken.value).encode()


# -- names that no entry may have

WRONG = {
    "": "has an empty name",
    ".": "has the name '.'",
    "..": r"has the name '\.\.'",
    "a\0b": "has a NUL byte in its name",
    "x/y": "has a slash in its name",
    "x/../../y": "has a slash in its name",
    "n" * 256: "has a name longer than 255 bytes",
    "é" * 128: "has a name longer than 255 bytes",
    "\udce9" * 256: "has a name longer than 255 bytes",
}


def test_names_that_a_catalog_may_have() -> None:
    for name in ("n" * 255, "é" * 127, "\udce9" * 255, "...", "..x", "-", "a\nb", "x" * 63, "日" * 85):
        assert name_fault(name) is None
        assert name_fault(bytes_of_name(name)) is None
        assert checked_member(b"d/" + bytes_of_name(name), "tree") if "\udce9" not in name else True


def with_row(repository: EditedStore, base: ObjectHash, name: str, folder: bool = False) -> ObjectHash:
    """A revision with one more row, as a publisher could upload it."""
    edit = repository.edit(base)
    catalog = edit.root
    entry = (DIRECTORY if folder else file(b"new")).changed(name=name)
    catalog._run(catalog._shape.insert, *path_hash(f"/d/{name}"), *path_hash("/d"), *entry.to_row())
    edit.touch("", edit.root.root_entry.changed(mtime=9))
    return repository.keep(edit)


@pytest.mark.parametrize("many", [False, True], ids=["few", "copied by rows"])
@pytest.mark.parametrize("folder", [False, True], ids=["file", "directory"])
@pytest.mark.parametrize("name", WRONG, ids=lambda name: repr(name[:3]))
def test_they_are_not_merged(repository: EditedStore, name: str, folder: bool, many: bool) -> None:
    edit = repository.edit()
    edit.add("/d", DIRECTORY)
    base = repository.keep(edit)
    edit = repository.edit(base)
    for number in range(100 if many else 0):
        edit.add(f"/d/{number}", file())
    new = with_row(repository, repository.keep(edit), name, folder)
    with refused(MergeError, path=f"/d/{name}"):
        merge(repository.cache, base=base, new=new, current=base, lease_path="/d")


@pytest.mark.parametrize("name", WRONG, ids=lambda name: repr(name[:3]))
def test_they_are_named_by_check_and_refused_by_prepare_and_get(name: str, tmp_path: Path) -> None:
    mini = sample(MemoryStore())
    mini.damage("", "UPDATE catalog SET name = CAST(? AS TEXT) WHERE name = 'readme'", bytes_of_name(name))
    mini.publish()
    repository = Opened.open(mini.store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
    assert any(re.search(WRONG[name], problem.what) for problem in check(repository).problems)
    with refused(CatalogError, path=f"/{name}"):
        get(repository.revision, "/", tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    member = b"d/" + bytes_of_name(name) + b"/f"
    if name in ("", ".", "x/y"):
        # with a clear meaning in an archive: the names that prepare gives on are right
        assert checked_member(member, "tree") == ("d/x/y/f" if name == "x/y" else "d/f")
        return
    with pytest.raises(SourceError):
        checked_member(member, "tree")
