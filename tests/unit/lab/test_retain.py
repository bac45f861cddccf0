"""Old log files go, with the folders that they leave empty; nothing else."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.retain import RemovedLogs, clean_database, remove_logs

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
BEFORE = NOW - timedelta(days=60)


def log(path: Path, days: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("twelve bytes")
    at = (NOW - timedelta(days=days)).timestamp()
    for one in (path, *path.parents[:3]):
        os.utime(one, (at, at))
    return path


def test_only_what_is_older_goes_and_empty_folders_with_it(tmp_path: Path) -> None:
    elsewhere = log(tmp_path / "elsewhere" / "a" / "b" / "kept.log", 99)
    logs = tmp_path / "logs"
    young = log(logs / "dag_id=a" / "run_id=2" / "task.log", 59)
    old = log(logs / "dag_id=a" / "run_id=1" / "task.log", 61)
    (logs / "link").symlink_to(elsewhere.parent)
    assert remove_logs(logs, BEFORE, dry_run=True) == RemovedLogs(1, 12)
    assert old.exists()
    assert remove_logs(logs, BEFORE, dry_run=False) == RemovedLogs(1, 12)
    assert young.exists()
    assert elsewhere.exists()
    assert not old.exists()
    for folder in (logs, tmp_path / "none"):
        assert remove_logs(folder, BEFORE, dry_run=False) == RemovedLogs(0, 0)


def test_the_message_repeats_what_airflow_says_of_its_failure(tmp_path: Path) -> None:
    program = tmp_path / "airflow"
    program.write_text("#!/bin/sh\necho no such database >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(LabError, match="code 3: no such database"):
        clean_database({"PATH": f"{tmp_path}:/usr/bin:/bin"}, BEFORE, dry_run=True)
