"""The check names every kind of damage in catalogs with its place, and nothing in a repository that is whole."""

from __future__ import annotations

import pytest

from include.cvmfs.check.findings import Subject
from include.cvmfs.format.hashes import Algorithm, path_hash
from include.cvmfs.format.schema import NAMES
from include.cvmfs.revision.repository import Repository
from tests.fakes.checks import HERE, checked, places, set_row
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample

S = Subject
APP, DEEP, BIG = "/sw/app", "/sw/app/lib/deep", "/sw/app/big"
COPY = "1, hash, size, mode, mtime, flags, name, '', 0, 0, NULL"
STRAY = COPY.replace("name", "'stray'")


# Catalog, statement with values, and what is found at least.
CATALOG_DAMAGE: dict[str, tuple[str, tuple[object, ...], set[tuple[S, str]]]] = {
    "root prefix of another place": (
        APP,
        ("UPDATE properties SET value = '/sw/other' WHERE key = 'root_prefix'",),
        {(S.CATALOG, APP)},
    ),
    "schema of another time": (APP, ("UPDATE properties SET value = '2.4' WHERE key = 'schema'",), {(S.CATALOG, APP)}),
    "newer schema": (APP, ("UPDATE properties SET value = '2.6' WHERE key = 'schema'",), {(S.CATALOG, APP)}),
    "table gone": (APP, ("DROP TABLE chunks",), {(S.CATALOG, APP)}),
    "no root entry": (DEEP, (f"DELETE FROM catalog WHERE {HERE}", *path_hash(DEEP)), {(S.CATALOG, DEEP)}),
    "root entry is a file": (DEEP, set_row(DEEP, "mode = ?, flags = 4", 0o100755), {(S.CATALOG, DEEP)}),
    "root entry without the flag": (APP, set_row(APP, "flags = 1"), {(S.TRANSITION, APP)}),
    "repository root with the flag": ("", set_row("", "flags = 33"), {(S.TRANSITION, "")}),
    "root entry below another parent": (APP, set_row(APP, "parent_1 = 0, parent_2 = 0"), {(S.ENTRY, APP)}),
    "mountpoint of another mode": ("", set_row(APP, "mode = ?", 0o40700), {(S.TRANSITION, APP)}),
    "mountpoint of another mtime": ("", set_row(APP, "mtime = 1"), {(S.TRANSITION, APP)}),
    "mountpoint of another size": ("", set_row(APP, "size = 1"), {(S.TRANSITION, APP)}),
    "mountpoint of another link count": ("", set_row(APP, "hardlinks = 7"), {(S.TRANSITION, APP)}),
    "mountpoint without attributes": ("", set_row(APP, "xattr = NULL"), {(S.TRANSITION, APP), (S.COUNTERS, "")}),
    "entries below a mountpoint": (
        "",
        (
            f"INSERT INTO catalog SELECT 1, 2, ?, ?, {STRAY} FROM catalog WHERE {HERE}",
            *path_hash(APP),
            *path_hash("/readme"),
        ),
        {(S.TRANSITION, APP)},
    ),
    "both nested and bind": ("", set_row(APP, "flags = flags | ?", 0x4000), {(S.TRANSITION, APP), (S.NESTED, APP)}),
    "empty name": ("", set_row("/readme", "name = ''"), {(S.ENTRY, "/")}),
    "name with a slash": ("", set_row("/readme", "name = 'a/b'"), {(S.ENTRY, "/a/b")}),
    "name NULL": ("", set_row("/readme", "name = NULL"), {(S.ENTRY, "/None")}),
    "name of another path": ("", set_row("/readme", "name = 'other'"), {(S.ENTRY, "/other")}),
    "symlink NULL": ("", set_row("/readme", "symlink = NULL"), {(S.ENTRY, "/readme")}),
    "hash of 19 bytes": ("", set_row("/readme", "hash = ?", bytes(19)), {(S.ENTRY, "/readme")}),
    "unknown compression": ("", set_row("/readme", "flags = ?", 4 | 5 << 11), {(S.ENTRY, "/readme")}),
    "flags of another type": ("", set_row("/readme", "flags = 1"), {(S.ENTRY, "/readme")}),
    "size beyond all numbers": ("", set_row("/readme", "size = 1e300"), {(S.ENTRY, "/readme")}),
    "negative size": ("", set_row("/readme", "size = -6"), {(S.ENTRY, "/readme")}),
    "link count 0": ("", set_row("/readme", "hardlinks = 0"), {(S.ENTRY, "/readme")}),
    "file without hash": ("", set_row("/readme", "hash = NULL"), {(S.ENTRY, "/readme")}),
    "symlink with a hash": ("", set_row("/sw/link", "hash = ?", bytes(20)), {(S.ENTRY, "/sw/link")}),
    "directory with a hash": ("", set_row("/empty", "hash = ?", bytes(20)), {(S.ENTRY, "/empty")}),
    "fifo with a hash": ("", set_row("/sw/pipe", "hash = ?", bytes(20)), {(S.ENTRY, "/sw/pipe")}),
    "fifo with a target": ("", set_row("/sw/pipe", "symlink = 'x'"), {(S.ENTRY, "/sw/pipe")}),
    "external directory": ("", set_row("/empty", "flags = flags | 128"), {(S.ENTRY, "/empty")}),
    "direct-I/O symlink": ("", set_row("/sw/link", "flags = flags | 65536"), {(S.ENTRY, "/sw/link")}),
    "directory in a hard-link group": ("", set_row("/empty", "hardlinks = ?", 3 << 32 | 2), {(S.ENTRY, "/empty")}),
    "directory's link count": ("", set_row("/empty", "hardlinks = 3"), {(S.LINKCOUNT, "/empty")}),
    "root's link count": ("", set_row("", "hardlinks = 3"), {(S.LINKCOUNT, "")}),
    "two links without a group": ("", set_row("/readme", "hardlinks = 2"), {(S.HARDLINK, "/readme")}),
    "hard links that differ": (APP, set_row("/sw/app/two", "mtime = 1"), {(S.HARDLINK, "/sw/app/two")}),
    "hard-link group with a member too few": (
        APP,
        ("UPDATE catalog SET hardlinks = ? WHERE hardlinks >> 32 = 1", 1 << 32 | 3),
        {(S.HARDLINK, "/sw/app/one")},
    ),
    "chunked without chunks": (APP, ("DELETE FROM chunks",), {(S.CHUNKS, BIG), (S.COUNTERS, APP)}),
    "a gap between chunks": (APP, ("UPDATE chunks SET offset = 1001 WHERE offset = 1000",), {(S.CHUNKS, BIG)}),
    "chunks that overlap": (APP, ("UPDATE chunks SET offset = 999 WHERE offset = 1000",), {(S.CHUNKS, BIG)}),
    "chunks that begin late": (APP, ("UPDATE chunks SET offset = 1 WHERE offset = 0",), {(S.CHUNKS, BIG)}),
    "a chunk too few": (APP, ("DELETE FROM chunks WHERE offset = 1500",), {(S.CHUNKS, BIG), (S.COUNTERS, APP)}),
    "chunks shorter than the file": (APP, ("UPDATE chunks SET size = 699 WHERE offset = 1500",), {(S.CHUNKS, BIG)}),
    "chunk with a short hash": (APP, ("UPDATE chunks SET hash = x'00' WHERE offset = 0",), {(S.CHUNKS, BIG)}),
    "chunk rows of no file": ("", ("INSERT INTO chunks VALUES (1, 2, 0, 5, zeroblob(20))",), {(S.ROWS, "")}),
    "dangling row": ("", set_row("/readme", "parent_1 = 5"), {(S.ROWS, ""), (S.COUNTERS, "")}),
    "abandoned marker": (
        APP,
        (
            f"INSERT INTO catalog SELECT ?, ?, ?, ?, {COPY} FROM catalog WHERE {HERE}",
            *path_hash("/sw/app/lib/.cvmfscatalog"),
            *path_hash("/sw/app/lib"),
            *path_hash("/sw/app/.cvmfscatalog"),
        ),
        {(S.MARKER, "/sw/app/lib/.cvmfscatalog"), (S.COUNTERS, APP)},
    ),
    "no marker": (
        APP,
        (f"DELETE FROM catalog WHERE {HERE}", *path_hash("/sw/app/.cvmfscatalog")),
        {(S.MARKER, APP), (S.COUNTERS, APP)},
    ),
    "marker is a symlink": (
        APP,
        set_row("/sw/app/.cvmfscatalog", "mode = ?, flags = 12, hash = NULL, symlink = 'x'", 0o120777),
        {(S.MARKER, "/sw/app/.cvmfscatalog")},
    ),
    "mountpoint that is not registered": (APP, ("DELETE FROM nested_catalogs",), {(S.NESTED, DEEP), (S.COUNTERS, APP)}),
    "registered without a mountpoint": (APP, set_row(DEEP, "flags = 1"), {(S.NESTED, DEEP)}),
    "registered in a catalog beside it": (
        DEEP,
        ("INSERT INTO nested_catalogs VALUES ('/empty', ?, 0)", "ab" * 20),
        {(S.NESTED, "/empty")},
    ),
    "nested hash unreadable": (
        DEEP,
        ("INSERT INTO nested_catalogs VALUES ('/sw/app/lib/deep/x', 'no hash', 0)",),
        {(S.NESTED, "/sw/app/lib/deep/x")},
    ),
    "bind mountpoint without a directory": (
        "",
        ("INSERT INTO bind_mountpoints VALUES ('/bound', ?, 0)", "ab" * 20),
        {(S.NESTED, "/bound")},
    ),
    "bind mountpoint that is not registered": (
        "",
        set_row("/empty", "flags = flags | ?", 0x4000),
        {(S.NESTED, "/empty")},
    ),
    "both nested and bind registered": (
        "",
        ("INSERT INTO bind_mountpoints VALUES ('/sw/app', ?, 0)", "ab" * 20),
        {(S.NESTED, APP)},
    ),
    "counter missing": (APP, ("DELETE FROM statistics WHERE counter = 'self_xattr'",), {(S.COUNTERS, APP)}),
    "statistics are a view": ("", ("CREATE VIEW v AS SELECT 1",), {(S.CATALOG, "")}),
}


# Damage that concerns no other path.
ALONE = [
    "root prefix of another place", "mountpoint of another mtime", "directory with a hash", "link count 0",
    "root's link count", "hard links that differ", "fifo with a target", "chunk rows of no file", "counter missing",
    "bind mountpoint without a directory", "schema of another time", "newer schema", "table gone",
    "chunks that overlap",
]  # fmt: skip


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("options", [{}, {"contents": True}, {"quick": True}, {"tag": "trunk"}])
def test_a_whole_repository_is_ok(store: MemoryStore, algorithm: Algorithm, options: dict[str, object]) -> None:
    mini = sample(store, algorithm)
    mini.publish()
    report = checked(mini, **options)
    assert (report.problems, report.warnings) == ((), ())
    assert report.ok
    assert report.verdict == "no problems found"
    assert (report.entries, report.catalogs) == (20, 3)
    assert report.objects == (0 if "quick" in options else 10)


@pytest.mark.parametrize("damage", CATALOG_DAMAGE)
def test_damage_inside_a_catalog_is_named_with_its_path(mini: MiniRepository, damage: str) -> None:
    catalog, (sql, *values), expected = CATALOG_DAMAGE[damage]
    mini.damage(catalog, str(sql), *values).publish()
    report = checked(mini)
    assert expected <= places(report)
    assert not report.ok
    assert all(problem.catalog for problem in report.problems)
    if damage in ALONE:
        assert {path for _, path in places(report)} == {path for _, path in expected}


@pytest.mark.parametrize("half", ["self", "subtree"])
@pytest.mark.parametrize("catalog", ["", "/sw/app", "/sw/app/lib/deep"])
def test_every_counter_is_counted_again(mini: MiniRepository, half: str, catalog: str) -> None:
    mini.damage(catalog, f"UPDATE statistics SET value = value + 1 WHERE counter LIKE '{half}%'").publish()
    report = checked(mini, quick=True)
    assert places(report) == {(S.COUNTERS, catalog)}
    text = " ".join(problem.what for problem in report.problems)
    assert [name for name in NAMES if f"{half}_{name} is " not in text] == []


def test_a_recorded_size_of_a_nested_catalog_that_is_wrong_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    mini.store_catalogs()
    mini.damage("", "UPDATE nested_catalogs SET size = size + 1")
    children = {path: data for path, data in mini.databases.items() if path}
    for path in children:
        del mini.databases[path]
    mini.publish()
    assert places(checked(mini)) == {(S.CATALOG, "/sw/app")}


def test_a_recorded_size_of_the_root_catalog_that_is_wrong_is_found(mini: MiniRepository) -> None:
    mini.publish(root_size=17)
    assert places(checked(mini)) == {(S.CATALOG, "")}


def test_a_catalog_that_needs_a_write_ahead_log_is_found_and_still_checked(mini: MiniRepository) -> None:
    data = mini.damage("/sw/app", *set_row("/sw/app/run", "hardlinks = 0")).databases["/sw/app"]
    deep = mini.databases["/sw/app/lib/deep"]
    mini.databases["/sw/app/lib/deep"] = deep[:18] + b"\x02\x02" + deep[20:]
    assert data
    mini.publish()
    assert places(checked(mini)) == {(S.CATALOG, "/sw/app/lib/deep"), (S.ENTRY, "/sw/app/run")}


def test_catalogs_of_older_revisions_are_right_without_later_columns_and_counters(mini: MiniRepository) -> None:
    deep = "/sw/app/lib/deep"
    mini.damage(deep, "UPDATE properties SET value = '1' WHERE key = 'schema_revision'")
    mini.damage(deep, "ALTER TABLE catalog DROP COLUMN xattr")
    mini.damage(deep, "DROP TABLE bind_mountpoints")
    late = "counter LIKE '%xattr' OR counter LIKE '%external%' OR counter LIKE '%special'"
    mini.damage(deep, f"DELETE FROM statistics WHERE {late}")
    mini.publish()
    assert places(checked(mini)) == set()


def test_names_that_are_not_utf8_are_checked_and_shown_printable(mini: MiniRepository) -> None:
    import hashlib
    import struct

    path = struct.unpack("<qq", hashlib.md5(b"/caf\xe9").digest())
    update = f"UPDATE catalog SET name = CAST(x'636166e9' AS TEXT), md5path_1 = ?, md5path_2 = ? WHERE {HERE}"
    mini.damage("", update, *path, *path_hash("/readme"))
    mini.publish()
    assert checked(mini).ok
    mini.damage("", "UPDATE catalog SET hardlinks = 0 WHERE md5path_1 = ?", path[0]).publish()
    problem = checked(mini).problems[0]
    assert str(problem).startswith("/caf\\udce9: entry: link count 0 [catalog ")
    assert problem.as_dict()["path"] == "/caf\\udce9"


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "of other bytes"])
def test_a_bad_nested_catalog_is_named_and_none_above_it(
    mini: MiniRepository, store: MemoryStore, missing: bool
) -> None:
    mini.publish()
    deep = Repository.open(store).revision.nested_at(DEEP)
    assert deep is not None
    whole = store.objects.pop(deep.hash.key)
    if not missing:
        store.objects[deep.hash.key] = whole + b"x"
    report = checked(mini)
    assert places(report) == {(S.CATALOG, DEEP)}
    assert report.problems[0].catalog == deep.hash
    assert report.catalogs == 2


def test_a_missing_root_catalog_is_one_problem(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.publish()
    del store.objects[manifest.root.key]
    report = checked(mini)
    assert places(report) == {(S.CATALOG, "")}
    assert [warning.subject for warning in report.warnings] == [S.TAG]
