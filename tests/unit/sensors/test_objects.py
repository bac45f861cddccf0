"""Waiting for an object: found at once, found by the triggerer, or not in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.sdk import TriggerRule
from airflow.sdk.exceptions import TaskDeferred

from hooks.retry import RetryByKind
from include.settings.errors import SettingsError
from sensors.objects import NotThere, ObjectSensor
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

KEY = "main/2026-11-21/index.json"


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the store `builds` of a site."""
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\nstores: {{builds: {{url: "file://{tmp_path}/builds"}}}}\n'
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    return tmp_path / "builds"


def sensor(**changes: object) -> ObjectSensor:
    return ObjectSensor(**{"task_id": "wait", "store": "builds", "key": KEY, **changes})  # type: ignore[arg-type]


def drop(builds: Path) -> str:
    (builds / KEY).parent.mkdir(parents=True)
    (builds / KEY).write_bytes(b"{}")
    return f"file://{builds}/{KEY}"


def test_an_object_is_found_at_once_or_by_the_triggerer_or_not_in_time(builds: Path) -> None:
    event = {"found": True, "reason": "has 2 bytes"}
    with pytest.raises(NotThere):
        sensor().resume_execution("found", {"event": event | {"found": False}}, task_context())
    assert NotThere.retryable
    url = drop(builds)
    assert sensor().execute(task_context()) == url
    assert sensor().resume_execution("found", {"event": event}, task_context()) == url
    with refused(SettingsError, retryable=False):
        sensor(store="nowhere").execute(task_context())


def test_the_waiting_is_left_to_the_triggerer_with_a_fixed_deadline(builds: Path) -> None:
    before = datetime.now(UTC)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(timeout=600.0, poke_interval=5.0).execute(task_context())
    _, row = deferred.value.trigger.serialize()
    assert (row["check"], row["arguments"]) == ("object", {"store": "builds", "key": KEY})
    assert row["poll_s"] == 5.0
    deadline = datetime.fromisoformat(row["deadline"])
    assert timedelta(seconds=600) <= deadline - before < timedelta(seconds=610)
    # the trigger says itself what did not come; Airflow's own time out comes only after it
    assert deferred.value.timeout is not None
    assert deferred.value.timeout > timedelta(seconds=600 + 2 * 5)
    assert deferred.value.method_name == "found"


def test_errors_decide_themselves_whether_it_is_tried_again() -> None:
    assert isinstance(sensor().retry_policy, RetryByKind)
    assert sensor().trigger_rule == TriggerRule.ALL_SUCCESS
    assert set(ObjectSensor.template_fields) == {"store", "key", "store_conn_id"}
