"""The check reads what the manifest names: meta info, reflog, history, tags, other paths and the signature."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from include.cvmfs.check import findings as findings_module
from include.cvmfs.check.check import CheckProgress, check
from include.cvmfs.check.findings import Subject
from include.cvmfs.format.database import KEY as REFLOG_KEY, Tag
from include.cvmfs.format.hashes import CATALOG, HISTORY, ObjectHash
from include.cvmfs.format.objects import decompress
from include.cvmfs.revision.repository import Repository
from tests.fakes.checks import checked, places, set_row
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import SECONDS, MiniRepository, opened

NOWHERE = ObjectHash(bytes.fromhex("ab" * 20))


@pytest.mark.parametrize("subject", [Subject.META_INFO, Subject.HISTORY, Subject.REFLOG])
def test_a_missing_object_of_the_manifest_is_found(mini: MiniRepository, store: MemoryStore, subject: Subject) -> None:
    manifest = mini.publish()
    keys = {Subject.META_INFO: manifest.meta, Subject.HISTORY: manifest.history}
    del store.objects[keys[subject].key if subject in keys else REFLOG_KEY]
    assert places(checked(mini)) == {(subject, "")}


def test_meta_info_that_is_no_json_is_a_warning(mini: MiniRepository) -> None:
    manifest = mini.publish()
    draft = replace(manifest, meta=mini.keep(b"{", "M"))
    mini.write_manifest(replace(draft, reflog=mini.write_reflog(draft)))
    report = checked(mini)
    assert report.ok
    assert [warning.subject for warning in report.warnings] == [Subject.META_INFO]


def test_a_reflog_of_other_bytes_or_without_a_name_is_found(mini: MiniRepository, store: MemoryStore) -> None:
    mini.publish(reflog=None)
    assert places(checked(mini)) == {(Subject.REFLOG, "")}
    del store.objects[REFLOG_KEY]
    assert checked(mini).ok
    mini.publish()
    store.objects[REFLOG_KEY] = store.objects[REFLOG_KEY][:-100]
    assert (Subject.REFLOG, "") in places(checked(mini))


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
def test_replaced_objects_are_read_again(mini: MiniRepository, store: MemoryStore, collected: bool) -> None:
    mini.publish()
    repository = opened(store)
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
    manifest = mini.publish()
    assert manifest.history is not None
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(decompress(store.objects[manifest.history.key]))
    connection.execute(sql)
    draft = replace(manifest, history=mini.keep(connection.serialize(), HISTORY))
    mini.write_manifest(replace(draft, reflog=mini.write_reflog(draft)))
    assert {subject for subject, _ in places(checked(mini))} == {Subject.HISTORY}


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
    assert places(report) == {(Subject.ALTERNATIVE_PATH, "")}
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
    assert places(report) == {(Subject.SIGNATURE, "")}


# -- warnings, counts and progress


def test_a_marker_in_the_root_directory_and_other_owners_at_a_mountpoint_are_warnings(mini: MiniRepository) -> None:
    mini.file("/.cvmfscatalog", b"")
    mini.build().damage("", *set_row("/sw/app", "uid = 7")).publish()
    report = checked(mini)
    assert report.ok
    warnings = {(warning.subject, warning.path) for warning in report.warnings}
    assert warnings == {(Subject.MARKER, "/.cvmfscatalog"), (Subject.TRANSITION, "/sw/app")}


def test_many_problems_are_counted_and_the_first_kept(mini: MiniRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "KEPT", 2)
    mini.damage("/sw/app", "UPDATE catalog SET hardlinks = 0").publish()
    report = checked(mini)
    assert len(report.problems) == 2
    assert report.problem_count > 2
    assert report.verdict == f"{report.problem_count} problems found"


def test_progress_is_reported_for_catalogs_and_objects(mini: MiniRepository) -> None:
    mini.publish()
    steps: list[CheckProgress] = []
    checked(mini, progress=steps.append)
    assert steps[2] == CheckProgress("catalogs", 3, 3)
    assert {progress.step for progress in steps} == {"catalogs", "objects"}
