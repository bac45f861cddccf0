"""Runs of every minute are deleted with their logs: those that ended long ago, page by page."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from include.airflow_api import AirflowApi
from operators import stageout
from operators.stageout import DeleteOldRunsOperator
from tests.fakes.taskcontext import task_context


class _Airflow:
    """Runs by state; `deleted` has those that are gone."""

    def __init__(self) -> None:
        self.runs = {"success": [f"scheduled__{number}" for number in range(5)], "failed": ["a/../../kept"]}
        self.deleted: list[str] = []
        self.asked: dict[str, datetime] = {}

    def old_runs(self, _: str, *, state: str, before: datetime) -> list[str]:
        self.asked[state] = before
        return [run for run in self.runs[state] if run not in self.deleted][:2]

    def delete_run(self, _: str, run_id: str) -> None:
        self.deleted.append(run_id)


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def write(**stageout: Any) -> None:
        document = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "stageout": stageout}
        (tmp_path / "site.yaml").write_text(json.dumps(document))

    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_KEEPER", json.dumps({"conn_type": "http", "host": "127.0.0.1", "login": "keeper"}))
    monkeypatch.setattr(stageout, "log_folder", lambda: tmp_path / "logs")
    return write


def delete() -> dict[str, int]:
    done: dict[str, int] = DeleteOldRunsOperator(task_id="delete", dag_ids=["minutely"]).execute(task_context())
    return done


def test_old_runs_go_with_their_logs_and_failed_ones_stay_longer(
    configure: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(runs_connection="keeper", keep_run_hours=2)
    airflow = _Airflow()
    for name in ("old_runs", "delete_run"):
        call = getattr(airflow, name)
        monkeypatch.setattr(AirflowApi, name, lambda _, *given, call=call, **named: call(*given, **named))
    gone, kept = (tmp_path / "logs" / "dag_id=minutely" / f"run_id=scheduled__{number}" for number in (0, 9))
    elsewhere = tmp_path / "kept"
    for folder in (gone, kept, elsewhere):
        folder.mkdir(parents=True)
        (folder / "attempt=1.log").write_text("log")
    assert delete() == {"minutely": 6}
    assert len(airflow.deleted) == 6
    assert (gone.exists(), kept.exists(), elsewhere.exists()) == (False, True, True)
    ages = {state: datetime.now(UTC) - before for state, before in airflow.asked.items()}
    assert timedelta(hours=2) <= ages["success"] < timedelta(hours=3)
    assert timedelta(hours=14) <= ages["failed"] < timedelta(hours=15)


def test_without_a_connection_runs_stay(configure: Callable[..., None]) -> None:
    configure(runs_connection="")
    with pytest.raises(AirflowSkipException):
        delete()
