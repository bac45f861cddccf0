"""The check names every kind of damage in catalogs with its place, and nothing in a repository that is whole."""

from __future__ import annotations

import pytest

from include.cvmfs.check.findings import Subject
from include.cvmfs.format.hashes import Algorithm, path_hash
from include.cvmfs.format.schema import NAMES
from include.cvmfs.revision.repository import Repository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample
from tests.unit.cvmfs.check.conftest import checked, found
from tests.unit.cvmfs.check.damages import CATALOG_DAMAGE, HERE, set_row


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
    deep = Repository.open(store).revision.nested_at("/sw/app/lib/deep")
    assert deep is not None
    del store.objects[deep.hash.key]
    report = checked(mini)
    assert found(report) == {(Subject.CATALOG, "/sw/app/lib/deep")}
    assert report.problems[0].catalog == deep.hash
    assert report.catalogs == 2


def test_a_nested_catalog_of_other_bytes_is_named(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    deep = Repository.open(store).revision.nested_at("/sw/app/lib/deep")
    assert deep is not None
    store.objects[deep.hash.key] += b"x"
    assert found(checked(mini)) == {(Subject.CATALOG, "/sw/app/lib/deep")}


def test_a_missing_root_catalog_is_one_problem(mini: MiniRepository, store: MemoryStore) -> None:
    manifest = mini.publish()
    del store.objects[manifest.root.key]
    report = checked(mini)
    assert found(report) == {(Subject.CATALOG, "")}
    assert [warning.subject for warning in report.warnings] == [Subject.TAG]
