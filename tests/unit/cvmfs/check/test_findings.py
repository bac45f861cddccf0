"""What the check reports: warnings beside problems, all of them counted, and how far it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.cvmfs.check import findings as findings_module
from include.cvmfs.check.check import CheckProgress
from include.cvmfs.check.findings import Subject
from include.storage.file import FileStore
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample
from tests.unit.cvmfs.check.conftest import checked, found, key_of
from tests.unit.cvmfs.check.damages import set_row


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
    told: list[CheckProgress] = []
    checked(mini, progress=told.append)
    assert told[2] == CheckProgress("catalogs", 3, 3)
    assert {progress.step for progress in told} == {"catalogs", "objects"}


def test_a_repository_in_a_folder_is_checked_by_its_listing(tmp_path: Path) -> None:
    mini = sample(FileStore(tmp_path))
    mini.publish()
    assert checked(mini).ok
    (tmp_path / key_of(mini, "/readme")).unlink()
    assert found(checked(mini)) == {(Subject.OBJECT, "/readme")}
