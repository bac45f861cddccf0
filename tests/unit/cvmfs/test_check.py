"""The check names every kind of damage with its place, and nothing in a repository that is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from include.cvmfs import findings as findings_module
from include.cvmfs.check import Progress, Report, check
from include.cvmfs.compression import compress, decompress
from include.cvmfs.counters import NAMES
from include.cvmfs.findings import Subject
from include.cvmfs.hashes import CATALOG, HISTORY, Algorithm, ObjectHash, path_hash
from include.cvmfs.history import Tag
from include.cvmfs.reflog import KEY as REFLOG_KEY
from include.cvmfs.repository import Repository
from include.storage.errors import Forbidden, Unavailable, Unsupported
from include.storage.file import FileStore
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, MiniRepository, public_key, sample

HERE = "md5path_1 = ? AND md5path_2 = ?"
COPY = "1, hash, size, mode, mtime, NULL, flags, name, '', 0, 0, NULL"
STRAY = COPY.replace("name", "'stray'")
NOWHERE = ObjectHash(bytes.fromhex("ab" * 20))


def set_row(path: str, assignment: str, *values: object) -> tuple[str, ...]:
    return (f"UPDATE catalog SET {assignment} WHERE {HERE}", *values, *path_hash(path))  # type: ignore[return-value]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mini(store: MemoryStore) -> MiniRepository:
    return sample(store)


def checked(mini: MiniRepository, **options: object) -> Report:
    return check(Repository.open(mini.store, fqrn=FQRN, public_keys=[public_key()], now=NOW), **options)


def found(report: Report) -> set[tuple[Subject, str]]:
    return {(problem.subject, problem.path) for problem in report.problems}


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("options", [{}, {"contents": True}, {"quick": True}, {"tag": "trunk"}])
def test_a_whole_repository_has_no_problems(
    store: MemoryStore, algorithm: Algorithm, options: dict[str, object]
) -> None:
    mini = sample(store, algorithm)
    mini.publish()
    report = checked(mini, **options)
    assert (report.problems, report.warnings) == ((), ())
    assert report.ok
    assert report.verdict == "no problems found"
    assert (report.entries, report.catalogs) == (20, 3)
    assert report.objects == (0 if "quick" in options else 10)


# One statement on one catalog: mount path, statement with values, and what must be found at least.
CATALOG_DAMAGE: dict[str, tuple[str, tuple[object, ...], set[tuple[Subject, str]]]] = {
    "root prefix of another place": (
        "/sw/app",
        ("UPDATE properties SET value = '/sw/other' WHERE key = 'root_prefix'",),
        {(Subject.CATALOG, "/sw/app")},
    ),
    "schema of another time": (
        "/sw/app",
        ("UPDATE properties SET value = '2.4' WHERE key = 'schema'",),
        {(Subject.CATALOG, "/sw/app")},
    ),
    "newer schema": (
        "/sw/app",
        ("UPDATE properties SET value = '2.6' WHERE key = 'schema'",),
        {(Subject.CATALOG, "/sw/app")},
    ),
    "table gone": ("/sw/app", ("DROP TABLE chunks",), {(Subject.CATALOG, "/sw/app")}),
    "no root entry": (
        "/sw/app/lib/deep",
        (f"DELETE FROM catalog WHERE {HERE}", *path_hash("/sw/app/lib/deep")),
        {(Subject.CATALOG, "/sw/app/lib/deep")},
    ),
    "root entry is a file": (
        "/sw/app/lib/deep",
        set_row("/sw/app/lib/deep", "mode = ?, flags = 4", 0o100755),
        {(Subject.CATALOG, "/sw/app/lib/deep")},
    ),
    "root entry without the flag": (
        "/sw/app",
        set_row("/sw/app", "flags = 1"),
        {(Subject.TRANSITION, "/sw/app")},
    ),
    "repository root with the flag": ("", set_row("", "flags = 33"), {(Subject.TRANSITION, "")}),
    "root entry below another parent": (
        "/sw/app",
        set_row("/sw/app", "parent_1 = 0, parent_2 = 0"),
        {(Subject.ENTRY, "/sw/app")},
    ),
    "mountpoint of another mode": ("", set_row("/sw/app", "mode = ?", 0o40700), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another mtime": ("", set_row("/sw/app", "mtime = 1"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another mtime in ns": ("", set_row("/sw/app", "mtimens = 1"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another size": ("", set_row("/sw/app", "size = 1"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint of another link count": ("", set_row("/sw/app", "hardlinks = 7"), {(Subject.TRANSITION, "/sw/app")}),
    "mountpoint without attributes": (
        "",
        set_row("/sw/app", "xattr = NULL"),
        {(Subject.TRANSITION, "/sw/app"), (Subject.COUNTERS, "")},
    ),
    "entries below a mountpoint": (
        "",
        (
            f"INSERT INTO catalog SELECT 1, 2, ?, ?, {STRAY} FROM catalog WHERE {HERE}",
            *path_hash("/sw/app"),
            *path_hash("/readme"),
        ),
        {(Subject.TRANSITION, "/sw/app")},
    ),
    "both nested and bind": (
        "",
        set_row("/sw/app", "flags = flags | ?", 0x4000),
        {(Subject.TRANSITION, "/sw/app"), (Subject.NESTED, "/sw/app")},
    ),
    "empty name": ("", set_row("/readme", "name = ''"), {(Subject.ENTRY, "/")}),
    "name with a slash": ("", set_row("/readme", "name = 'a/b'"), {(Subject.ENTRY, "/a/b")}),
    "name NULL": ("", set_row("/readme", "name = NULL"), {(Subject.ENTRY, "/None")}),
    "name of another path": ("", set_row("/readme", "name = 'other'"), {(Subject.ENTRY, "/other")}),
    "symlink NULL": ("", set_row("/readme", "symlink = NULL"), {(Subject.ENTRY, "/readme")}),
    "hash of 19 bytes": ("", set_row("/readme", "hash = ?", bytes(19)), {(Subject.ENTRY, "/readme")}),
    "unknown compression": ("", set_row("/readme", "flags = ?", 4 | 5 << 11), {(Subject.ENTRY, "/readme")}),
    "flags of another type": ("", set_row("/readme", "flags = 1"), {(Subject.ENTRY, "/readme")}),
    "size beyond all numbers": ("", set_row("/readme", "size = 1e300"), {(Subject.ENTRY, "/readme")}),
    "negative size": ("", set_row("/readme", "size = -6"), {(Subject.ENTRY, "/readme")}),
    "link count 0": ("", set_row("/readme", "hardlinks = 0"), {(Subject.ENTRY, "/readme")}),
    "file without hash": ("", set_row("/readme", "hash = NULL"), {(Subject.ENTRY, "/readme")}),
    "symlink with a hash": ("", set_row("/sw/link", "hash = ?", bytes(20)), {(Subject.ENTRY, "/sw/link")}),
    "directory with a hash": ("", set_row("/empty", "hash = ?", bytes(20)), {(Subject.ENTRY, "/empty")}),
    "fifo with a hash": ("", set_row("/sw/pipe", "hash = ?", bytes(20)), {(Subject.ENTRY, "/sw/pipe")}),
    "fifo with a target": ("", set_row("/sw/pipe", "symlink = 'x'"), {(Subject.ENTRY, "/sw/pipe")}),
    "external directory": ("", set_row("/empty", "flags = flags | 128"), {(Subject.ENTRY, "/empty")}),
    "direct-I/O symlink": ("", set_row("/sw/link", "flags = flags | 65536"), {(Subject.ENTRY, "/sw/link")}),
    "directory in a hard-link group": (
        "",
        set_row("/empty", "hardlinks = ?", 3 << 32 | 2),
        {(Subject.ENTRY, "/empty")},
    ),
    "directory's link count": ("", set_row("/empty", "hardlinks = 3"), {(Subject.LINKCOUNT, "/empty")}),
    "root's link count": ("", set_row("", "hardlinks = 3"), {(Subject.LINKCOUNT, "")}),
    "two links without a group": ("", set_row("/readme", "hardlinks = 2"), {(Subject.HARDLINK, "/readme")}),
    "hard links that differ": (
        "/sw/app",
        set_row("/sw/app/two", "mtime = 1"),
        {(Subject.HARDLINK, "/sw/app/two")},
    ),
    "hard-link group with a member too few": (
        "/sw/app",
        ("UPDATE catalog SET hardlinks = ? WHERE hardlinks >> 32 = 1", 1 << 32 | 3),
        {(Subject.HARDLINK, "/sw/app/one")},
    ),
    "chunked without chunks": (
        "/sw/app",
        ("DELETE FROM chunks",),
        {(Subject.CHUNKS, "/sw/app/big"), (Subject.COUNTERS, "/sw/app")},
    ),
    "a gap between chunks": (
        "/sw/app",
        ("UPDATE chunks SET offset = 1001 WHERE offset = 1000",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunks that overlap": (
        "/sw/app",
        ("UPDATE chunks SET offset = 999 WHERE offset = 1000",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunks that begin late": (
        "/sw/app",
        ("UPDATE chunks SET offset = 1 WHERE offset = 0",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "a chunk too few": (
        "/sw/app",
        ("DELETE FROM chunks WHERE offset = 1500",),
        {(Subject.CHUNKS, "/sw/app/big"), (Subject.COUNTERS, "/sw/app")},
    ),
    "chunks shorter than the file": (
        "/sw/app",
        ("UPDATE chunks SET size = 699 WHERE offset = 1500",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunk with a short hash": (
        "/sw/app",
        ("UPDATE chunks SET hash = x'00' WHERE offset = 0",),
        {(Subject.CHUNKS, "/sw/app/big")},
    ),
    "chunk rows of nobody": (
        "",
        ("INSERT INTO chunks VALUES (1, 2, 0, 5, zeroblob(20))",),
        {(Subject.ROWS, "")},
    ),
    "dangling row": (
        "",
        set_row("/readme", "parent_1 = 5"),
        {(Subject.ROWS, ""), (Subject.COUNTERS, "")},
    ),
    "abandoned marker": (
        "/sw/app",
        (
            f"INSERT INTO catalog SELECT ?, ?, ?, ?, {COPY} FROM catalog WHERE {HERE}",
            *path_hash("/sw/app/lib/.cvmfscatalog"),
            *path_hash("/sw/app/lib"),
            *path_hash("/sw/app/.cvmfscatalog"),
        ),
        {(Subject.MARKER, "/sw/app/lib/.cvmfscatalog"), (Subject.COUNTERS, "/sw/app")},
    ),
    "no marker": (
        "/sw/app",
        (f"DELETE FROM catalog WHERE {HERE}", *path_hash("/sw/app/.cvmfscatalog")),
        {(Subject.MARKER, "/sw/app"), (Subject.COUNTERS, "/sw/app")},
    ),
    "marker is a symlink": (
        "/sw/app",
        set_row("/sw/app/.cvmfscatalog", "mode = ?, flags = 12, hash = NULL, symlink = 'x'", 0o120777),
        {(Subject.MARKER, "/sw/app/.cvmfscatalog")},
    ),
    "mountpoint that is not registered": (
        "/sw/app",
        ("DELETE FROM nested_catalogs",),
        {(Subject.NESTED, "/sw/app/lib/deep"), (Subject.COUNTERS, "/sw/app")},
    ),
    "registered without a mountpoint": (
        "/sw/app",
        set_row("/sw/app/lib/deep", "flags = 1"),
        {(Subject.NESTED, "/sw/app/lib/deep")},
    ),
    "registered in a catalog beside it": (
        "/sw/app/lib/deep",
        ("INSERT INTO nested_catalogs VALUES ('/empty', ?, 0)", "ab" * 20),
        {(Subject.NESTED, "/empty")},
    ),
    "nested hash unreadable": (
        "/sw/app/lib/deep",
        ("INSERT INTO nested_catalogs VALUES ('/sw/app/lib/deep/x', 'no hash', 0)",),
        {(Subject.NESTED, "/sw/app/lib/deep/x")},
    ),
    "bind mountpoint without a directory": (
        "",
        ("INSERT INTO bind_mountpoints VALUES ('/bound', ?, 0)", "ab" * 20),
        {(Subject.NESTED, "/bound")},
    ),
    "bind mountpoint that is not registered": (
        "",
        set_row("/empty", "flags = flags | ?", 0x4000),
        {(Subject.NESTED, "/empty")},
    ),
    "both nested and bind registered": (
        "",
        ("INSERT INTO bind_mountpoints VALUES ('/sw/app', ?, 0)", "ab" * 20),
        {(Subject.NESTED, "/sw/app")},
    ),
    "counter missing": (
        "/sw/app",
        ("DELETE FROM statistics WHERE counter = 'self_xattr'",),
        {(Subject.COUNTERS, "/sw/app")},
    ),
    "statistics are a view": (
        "",
        ("CREATE VIEW v AS SELECT 1",),
        {(Subject.CATALOG, "")},
    ),
}


@pytest.mark.parametrize("damage", CATALOG_DAMAGE)
def test_damage_inside_a_catalog_is_named_with_its_path(mini: MiniRepository, damage: str) -> None:
    catalog, (sql, *values), expected = CATALOG_DAMAGE[damage]
    mini.damage(catalog, str(sql), *values).publish()
    report = checked(mini)
    assert expected <= found(report)
    assert not report.ok
    assert all(problem.catalog for problem in report.problems)


ALONE = [
    "root prefix of another place", "mountpoint of another mtime", "directory with a hash", "link count 0",
    "root's link count", "hard links that differ", "fifo with a target", "chunk rows of nobody", "counter missing",
    "bind mountpoint without a directory", "schema of another time", "newer schema", "table gone",
    "chunks that overlap",
]  # fmt: skip


@pytest.mark.parametrize("damage", ALONE)
def test_damage_in_one_place_is_said_of_that_place_only(mini: MiniRepository, damage: str) -> None:
    catalog, (sql, *values), expected = CATALOG_DAMAGE[damage]
    mini.damage(catalog, str(sql), *values).publish()
    assert {path for _, path in found(checked(mini))} == {path for _, path in expected}


@pytest.mark.parametrize("half", ["self", "subtree"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("catalog", ["", "/sw/app", "/sw/app/lib/deep"])
def test_every_counter_of_every_catalog_is_counted_again(
    mini: MiniRepository, half: str, name: str, catalog: str
) -> None:
    mini.damage(catalog, "UPDATE statistics SET value = value + 1 WHERE counter = ?", f"{half}_{name}").publish()
    report = checked(mini, quick=True)
    assert found(report) == {(Subject.COUNTERS, catalog)}
    assert f"{half}_{name} is " in report.problems[0].what


def test_a_recorded_size_of_a_nested_catalog_that_is_wrong_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    mini.store_catalogs()
    mini.damage("", "UPDATE nested_catalogs SET size = size + 1")
    children = {path: data for path, data in mini.databases.items() if path}
    for path in children:
        del mini.databases[path]
    mini.publish()
    assert found(checked(mini)) == {(Subject.CATALOG, "/sw/app")}


def test_a_recorded_size_of_the_root_catalog_that_is_wrong_is_found(mini: MiniRepository) -> None:
    mini.publish(root_size=17)
    assert found(checked(mini)) == {(Subject.CATALOG, "")}


def test_a_catalog_that_needs_a_write_ahead_log_is_found_and_still_checked(mini: MiniRepository) -> None:
    data = mini.damage("/sw/app", *set_row("/sw/app/run", "hardlinks = 0")).databases["/sw/app"]  # type: ignore[arg-type]
    deep = mini.databases["/sw/app/lib/deep"]
    mini.databases["/sw/app/lib/deep"] = deep[:18] + b"\x02\x02" + deep[20:]
    assert data
    mini.publish()
    assert found(checked(mini)) == {(Subject.CATALOG, "/sw/app/lib/deep"), (Subject.ENTRY, "/sw/app/run")}


def test_catalogs_of_older_revisions_are_right_without_later_columns_and_counters(mini: MiniRepository) -> None:
    deep = "/sw/app/lib/deep"
    mini.damage(deep, "UPDATE properties SET value = '1' WHERE key = 'schema_revision'")
    mini.damage(deep, "ALTER TABLE catalog DROP COLUMN xattr")
    mini.damage(deep, "ALTER TABLE catalog DROP COLUMN mtimens")
    mini.damage(deep, "DROP TABLE bind_mountpoints")
    late = "counter LIKE '%xattr' OR counter LIKE '%external%' OR counter LIKE '%special'"
    mini.damage(deep, f"DELETE FROM statistics WHERE {late}")
    mini.publish()
    assert found(checked(mini)) == set()


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


def test_a_missing_nested_catalog_is_named_and_nothing_above_is_blamed(
    mini: MiniRepository, store: MemoryStore
) -> None:
    mini.publish()
    deep = Repository.open(store).nested_at("/sw/app/lib/deep")
    assert deep is not None
    del store.objects[deep.hash.key]
    report = checked(mini)
    assert found(report) == {(Subject.CATALOG, "/sw/app/lib/deep")}
    assert report.problems[0].catalog == deep.hash
    assert report.catalogs == 2


def test_a_nested_catalog_of_other_bytes_is_named(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    deep = Repository.open(store).nested_at("/sw/app/lib/deep")
    assert deep is not None
    store.objects[deep.hash.key] += b"x"
    assert found(checked(mini)) == {(Subject.CATALOG, "/sw/app/lib/deep")}


def test_a_missing_root_catalog_is_one_problem(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.publish()
    del store.objects[manifest.root.key]
    report = checked(mini)
    assert found(report) == {(Subject.CATALOG, "")}
    assert [warning.subject for warning in report.warnings] == [Subject.TAG]


# -- data objects


def key_of(mini: MiniRepository, path: str) -> str:
    name = Repository.open(mini.store).entry(path).hash
    assert name is not None
    return name.key


def unlisted(store: MemoryStore) -> None:
    """Only single objects can be asked for, as over HTTP."""

    def refuse(prefix: str = "") -> None:
        raise Unsupported("read-only", key=prefix)

    store.list = refuse  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("listing", [True, False])
def test_missing_objects_are_named_once_with_a_path_that_needs_them(mini: MiniRepository, listing: bool) -> None:
    mini.publish()
    store = mini.store
    assert isinstance(store, MemoryStore)
    chunk = Repository.open(store).chunks("/sw/app/big")[1].hash.key
    for key in (key_of(mini, "/sw/app/one"), key_of(mini, "/sw/app/lib/deep/data"), chunk):
        del store.objects[key]
    if not listing:
        unlisted(store)
    report = checked(mini)
    assert found(report) == {
        (Subject.OBJECT, "/sw/app/one"), (Subject.OBJECT, "/sw/app/lib/deep/data"), (Subject.OBJECT, "/sw/app/big"),
    } or found(report) == {
        (Subject.OBJECT, "/sw/app/two"), (Subject.OBJECT, "/sw/app/lib/deep/data"), (Subject.OBJECT, "/sw/app/big"),
    }  # fmt: skip
    assert report.problem_count == 3
    assert any(chunk in problem.what for problem in report.problems)
    assert checked(mini, quick=True).ok
    assert checked(mini, data_objects=False).ok


def test_each_object_is_asked_for_once(mini: MiniRepository) -> None:
    mini.publish()
    store = mini.store
    assert isinstance(store, MemoryStore)
    unlisted(store)
    before = store.counters.heads
    report = checked(mini)
    tags = 1
    assert store.counters.heads - before == report.objects + tags


@pytest.mark.parametrize("listing", [True, False])
def test_an_object_that_is_stored_empty_or_cut_is_found_without_reading_it(mini: MiniRepository, listing: bool) -> None:
    mini.publish()
    store = mini.store
    assert isinstance(store, MemoryStore)
    store.objects[key_of(mini, "/readme")] = b""
    store.objects[key_of(mini, "/sw/plain")] = b"stored as"
    if not listing:
        unlisted(store)
    assert found(checked(mini)) == {(Subject.OBJECT, "/readme"), (Subject.OBJECT, "/sw/plain")}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1] + b"?",
        lambda data: data + b"?",
        lambda data: b"",
        lambda data: compress(b"other content"),
    ],
)
def test_wrong_bytes_are_found_when_contents_are_read(mini: MiniRepository, spoil: Callable[[bytes], bytes]) -> None:
    mini.publish()
    store = mini.store
    assert isinstance(store, MemoryStore)
    key = key_of(mini, "/readme")
    store.objects[key] = spoil(store.objects[key])
    assert found(checked(mini, contents=True)) == {(Subject.OBJECT, "/readme")}


def test_a_size_that_is_not_that_of_the_content_is_found_when_contents_are_read(mini: MiniRepository) -> None:
    size = "UPDATE statistics SET value = value + 1 WHERE counter = 'self_file_size'"
    mini.damage("", *set_row("/readme", "size = 7")).damage("", size).publish()  # type: ignore[arg-type]
    assert checked(mini).ok
    assert found(checked(mini, contents=True)) == {(Subject.OBJECT, "/readme")}


def test_an_external_file_needs_no_object(store: MemoryStore) -> None:
    mini = MiniRepository(store)
    name = mini.file("/far", b"elsewhere", external=True)
    mini.build().publish()
    del store.objects[name.key]
    report = checked(mini)
    assert report.ok
    assert report.objects == 0


def test_an_object_that_may_not_be_read_is_a_problem(mini: MiniRepository) -> None:
    mini.publish()
    store = mini.store
    assert isinstance(store, MemoryStore)
    unlisted(store)
    secret = key_of(mini, "/readme")

    def refuse(verb: str, key: str) -> None:
        if key == secret:
            raise Forbidden("no", key=key)

    store.before = refuse
    assert found(checked(mini)) == {(Subject.OBJECT, "/readme")}
    assert found(checked(mini, contents=True)) == {(Subject.OBJECT, "/readme")}


def test_a_store_that_no_longer_answers_is_an_error_and_no_verdict(mini: MiniRepository) -> None:
    mini.publish()
    store = mini.store
    assert isinstance(store, MemoryStore)
    repository = Repository.open(store, public_keys=[public_key()], now=NOW)

    def fail(verb: str, key: str) -> None:
        raise Unavailable("gone", key=key, cause="connection")

    store.before = fail
    with pytest.raises(Unavailable):
        check(repository)


# -- what the manifest names


def test_a_missing_meta_info_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.publish()
    assert manifest.meta is not None
    del store.objects[manifest.meta.key]
    assert found(checked(mini)) == {(Subject.META_INFO, "")}


def test_meta_info_that_is_no_json_is_a_warning(mini: MiniRepository) -> None:
    manifest = mini.publish()
    draft = replace(manifest, meta=mini.keep(b"{", "M"))
    mini.write_manifest(replace(draft, reflog=mini.write_reflog(draft)))
    report = checked(mini)
    assert report.ok
    assert [warning.subject for warning in report.warnings] == [Subject.META_INFO]


def test_a_missing_reflog_that_the_manifest_names_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    del store.objects[REFLOG_KEY]
    assert found(checked(mini)) == {(Subject.REFLOG, "")}


def test_a_repository_without_a_reflog_is_whole(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish(reflog=None)
    del store.objects[REFLOG_KEY]
    assert checked(mini).ok


def test_a_reflog_whose_hash_nobody_says_is_found(mini: MiniRepository) -> None:
    mini.publish(reflog=None)
    assert found(checked(mini)) == {(Subject.REFLOG, "")}


def test_a_reflog_of_other_bytes_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    store.objects[REFLOG_KEY] += b"x"
    assert (Subject.REFLOG, "") in found(checked(mini))


def test_a_publication_while_a_check_runs_is_no_problem(mini: MiniRepository) -> None:
    mini.publish()
    repository = Repository.open(mini.store, public_keys=[public_key()], now=NOW)
    old = Repository.open(mini.store, public_keys=[public_key()], now=NOW).manifest
    mini.file("/more", b"more")
    mini.build()
    newer = mini.publish()
    both = mini.write_reflog(newer, old)
    mini.write_manifest(replace(newer, reflog=both))
    assert check(repository).problems == ()


def test_a_reflog_ahead_of_the_manifest_is_found(mini: MiniRepository) -> None:
    manifest = mini.publish()
    mini.write_reflog(manifest, replace(manifest, root=NOWHERE))
    report = checked(mini)
    assert ["has the hash" in problem.what for problem in report.problems] == [True]


@pytest.mark.parametrize(
    ("field", "word"),
    [("root", "root catalog"), ("certificate", "certificate"), ("history", "history"), ("meta", "meta info")],
)
def test_a_reflog_that_lacks_what_the_manifest_names_is_found(mini: MiniRepository, field: str, word: str) -> None:
    manifest = mini.publish()
    without = {"root": replace(manifest, root=NOWHERE.with_suffix(CATALOG))}.get(
        field, replace(manifest, **{field: None})
    )
    mini.write_manifest(replace(manifest, reflog=mini.write_reflog(without)))
    report = checked(mini)
    assert [f"lacks the {word}" in problem.what for problem in report.problems] == [True]


def test_a_missing_history_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.publish()
    assert manifest.history is not None
    del store.objects[manifest.history.key]
    assert found(checked(mini)) == {(Subject.HISTORY, "")}


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM tags",
        "UPDATE tags SET branch = 'nowhere'",
        "UPDATE branches SET initial_revision = 99",
        "INSERT INTO branches VALUES ('unused', '', 0)",
        "UPDATE branches SET branch = 'no such!', parent = ''",
        "UPDATE properties SET value = 'other.example.org' WHERE key = 'fqrn'",
        "UPDATE tags SET hash = 'none'",
        "DROP TABLE tags",
    ],
)
def test_damage_in_the_history_is_found(mini: MiniRepository, store: MemoryStore, sql: str) -> None:
    import sqlite3

    manifest = mini.publish()
    assert manifest.history is not None
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(decompress(store.objects[manifest.history.key]))
    connection.execute(sql)
    draft = replace(manifest, history=mini.keep(connection.serialize(), HISTORY))
    mini.write_manifest(replace(draft, reflog=mini.write_reflog(draft)))
    assert {subject for subject, _ in found(checked(mini))} == {Subject.HISTORY}


def test_a_tag_whose_root_catalog_is_gone_is_a_warning(mini: MiniRepository) -> None:
    mini.publish(tags=[Tag("old", NOWHERE.with_suffix(CATALOG), 0, SECONDS, 4096)])
    report = checked(mini)
    assert report.ok
    assert ["tag old" in warning.what for warning in report.warnings] == [True]
    assert checked(mini, quick=True).warnings == ()


def test_a_tag_is_checked_instead_of_the_head(mini: MiniRepository, store: MemoryStore) -> None:
    old = mini.publish()
    mini.file("/more", b"more")
    mini.build()
    size = old.root_size
    mini.publish(tags=[Tag("old", old.root, 1, SECONDS, size)])
    assert (checked(mini, tag="old").entries, checked(mini).entries) == (20, 21)
    assert checked(mini, tag="old").root == old.root


def test_alternative_paths_that_are_announced_must_be_there(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.publish(alt_paths=True)
    report = checked(mini)
    assert found(report) == {(Subject.ALTERNATIVE_PATH, "")}
    assert report.problem_count == 2
    assert manifest.certificate is not None
    store.put(f".cvmfsalt-{manifest.certificate}X", b"")
    store.put(f".cvmfsalt-{manifest.root}C", b"")
    assert checked(mini).ok


def test_without_a_key_the_manifest_must_still_fit_its_certificate(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    data = store.objects[".cvmfspublished"]
    store.objects[".cvmfspublished"] = data[:-1] + bytes([data[-1] ^ 1])
    report = check(Repository.open(store))
    assert not report.verified
    assert found(report) == {(Subject.SIGNATURE, "")}


# -- the report


def test_a_marker_in_the_root_directory_is_a_warning(store: MemoryStore) -> None:
    mini = MiniRepository(store)
    mini.file("/.cvmfscatalog", b"")
    mini.build().publish()
    report = checked(mini)
    assert report.ok
    assert [(warning.subject, warning.path) for warning in report.warnings] == [(Subject.MARKER, "/.cvmfscatalog")]


def test_owners_that_differ_at_a_mountpoint_are_a_warning(mini: MiniRepository) -> None:
    mini.damage("", *set_row("/sw/app", "uid = 7")).publish()  # type: ignore[arg-type]
    report = checked(mini)
    assert report.ok
    assert [(warning.subject, warning.path) for warning in report.warnings] == [(Subject.TRANSITION, "/sw/app")]


def test_of_very_many_problems_all_are_counted_and_the_first_kept(
    mini: MiniRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_module, "KEPT", 2)
    mini.damage("/sw/app", "UPDATE catalog SET hardlinks = 0").publish()
    report = checked(mini)
    assert len(report.problems) == 2
    assert report.problem_count > 2
    assert report.verdict == f"{report.problem_count} problems found"


def test_progress_is_told_for_catalogs_and_objects(mini: MiniRepository) -> None:
    mini.publish()
    told: list[Progress] = []
    checked(mini, progress=told.append)
    assert told[2] == Progress("catalogs", 3, 3)
    assert {progress.step for progress in told} == {"catalogs", "objects"}


def test_a_repository_in_a_folder_is_checked_by_its_listing(tmp_path: Path) -> None:
    mini = sample(FileStore(tmp_path))
    mini.publish()
    assert checked(mini).ok
    (tmp_path / key_of(mini, "/readme")).unlink()
    assert found(checked(mini)) == {(Subject.OBJECT, "/readme")}
