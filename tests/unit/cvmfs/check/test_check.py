"""The check looks at what the manifest names: meta info, reflog, history, tags, other paths and the signature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.check.findings import Subject
from include.cvmfs.format.database import KEY as REFLOG_KEY
from include.cvmfs.format.hashes import CATALOG, HISTORY, ObjectHash
from include.cvmfs.format.history import Tag
from include.cvmfs.format.objects import decompress
from include.cvmfs.revision.repository import Repository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import NOW, SECONDS, MiniRepository, public_key
from tests.unit.cvmfs.check.conftest import checked, found

NOWHERE = ObjectHash(bytes.fromhex("ab" * 20))


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
    store.objects[REFLOG_KEY] = store.objects[REFLOG_KEY][:-100]
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


def test_a_reflog_that_is_sound_but_not_the_one_that_the_manifest_names_is_a_note(mini: MiniRepository) -> None:
    # as a stock collection leaves it, whose checksum file alone knows, and a commit that died before its switch
    manifest = mini.publish()
    mini.write_reflog(manifest, replace(manifest, root=NOWHERE))
    report = checked(mini)
    assert ["has the hash" in warning.what for warning in report.warnings] == [True]
    assert (report.ok, [warning.subject for warning in report.warnings]) == (True, [Subject.REFLOG])


def test_a_reflog_that_is_neither_named_nor_sound_is_found(mini: MiniRepository) -> None:
    manifest = mini.publish()
    mini.write_reflog(replace(manifest, root=NOWHERE))
    report = checked(mini)
    assert ["lacks" in problem.what for problem in report.problems] == [False, True]


@pytest.mark.parametrize("collected", [False, True])
def test_what_a_writer_replaces_during_the_check_is_looked_at_again(
    mini: MiniRepository, store: MemoryStore, collected: bool
) -> None:
    mini.publish()
    repository = Repository.open(store, public_keys=[public_key()], now=NOW)
    mini.file("/more", b"more")
    mini.build()
    newer = mini.publish()
    if not collected:  # the reflog still has what the check began with
        mini.write_manifest(replace(newer, reflog=mini.write_reflog(newer, repository.manifest)))
    report = check(repository)
    assert (report.problems, report.warnings) == ((), ())


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
    assert (report.problem_count, report.warning_count) == (2, 2)
    assert manifest.certificate is not None
    store.put(f".cvmfsalt-{manifest.certificate}X", b"")
    store.put(f".cvmfsalt-{manifest.root}C", store.get(manifest.root.key))
    assert [problem.what for problem in checked(mini).problems] == [f".cvmfsalt-{manifest.certificate}X is empty"]
    store.put(f".cvmfsalt-{manifest.certificate}X", store.get(manifest.certificate.key))
    assert checked(mini).ok


def test_without_a_key_the_manifest_must_still_fit_its_certificate(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish()
    data = store.objects[".cvmfspublished"]
    store.objects[".cvmfspublished"] = data[:-1] + bytes([data[-1] ^ 1])
    report = check(Repository.open(store))
    assert not report.verified
    assert found(report) == {(Subject.SIGNATURE, "")}
