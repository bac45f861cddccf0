"""A part of the soak counts if it passed at most fourteen days ago."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.soak import run, status
from tests.soak.results import Result, objection, read, write

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
PASSED = Result(commit="0123456789ab", began=NOW, seconds=1200, rounds=7, passed=True)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (PASSED, ""),
        (replace(PASSED, began=NOW - timedelta(days=14)), ""),
        (replace(PASSED, began=NOW - timedelta(days=14, seconds=1)), "its result is older than 14 days"),
        (replace(PASSED, passed=False), "it failed"),
        (None, "it has no result"),
    ],
)
def test_a_part_has_to_be_run_again_if_it_failed_or_its_result_is_old_or_missing(
    result: Result | None, why: str
) -> None:
    assert objection(result, NOW) == why


def test_a_result_replaces_that_of_its_part_alone(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    assert read(file) == {}
    write("gateway", PASSED, file)
    write("engine", PASSED, file)
    failed = replace(PASSED, rounds=0, passed=False)
    write("gateway", failed, file)
    assert read(file) == {"gateway": failed, "engine": PASSED}


def test_the_status_fails_and_names_the_command_for_each_part_that_has_to_be_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = replace(PASSED, began=datetime.now(UTC))
    results = dict.fromkeys(run.PARTS, fresh)
    monkeypatch.setattr(status, "read", lambda: results)
    assert status.main() == 0
    results["engine"] = replace(fresh, passed=False)
    del results["airflow"]
    assert status.main() == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("make ")] == [
        "make soak PART=engine  # it failed",
        "make soak PART=airflow  # it has no result",
    ]


def test_a_part_stops_at_the_first_round_that_fails_and_keeps_the_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rounds = iter([True, True, False])
    monkeypatch.setitem(run.PARTS, "engine", lambda: next(rounds))
    monkeypatch.setattr(run, "write", lambda part, result: write(part, result, tmp_path / "soak.json"))
    monkeypatch.setattr("sys.argv", ["run", "--part", "engine", "--seconds", "3600"])
    assert run.main() == 1
    result = read(tmp_path / "soak.json")["engine"]
    assert (result.passed, result.rounds) == (False, 2)
