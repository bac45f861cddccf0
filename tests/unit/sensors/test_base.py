"""Waiting for what a check looks for: seen at once or by the triggerer, not in time, or while its server is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.settings.errors import SettingsError
from include.storage.errors import Unavailable
from include.storage.file import FileStore
from sensors.objects import NotThere, ObjectSensor
from tests.fakes.plainsite import plain_file
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

KEY = "main/2026-11-21/index.json"
EVENT = {"found": True, "reason": "has 2 bytes"}


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    """The store `builds` of a site."""
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(plain_file(tmp_path)))
    return FileStore(tmp_path / "builds")


def sensor(**changes: object) -> ObjectSensor:
    return ObjectSensor(**{"task_id": "wait", "store": "builds", "key": KEY, **changes})  # type: ignore[arg-type]


def test_an_object_is_seen_at_once_or_by_the_triggerer_or_not_in_time(builds: FileStore) -> None:
    with pytest.raises(NotThere):
        sensor().resume_execution("found", {"event": EVENT | {"found": False}}, task_context())
    assert NotThere.retryable
    # what the trigger saw counts, whatever became of it since
    assert sensor().resume_execution("found", {"event": EVENT}, task_context()) == f"{builds.url}/{KEY}"
    builds.put(KEY, b"{}")
    assert sensor().execute(task_context()) == f"{builds.url}/{KEY}"
    with refused(SettingsError, retryable=False):
        sensor(store="nowhere").execute(task_context())


@pytest.mark.usefixtures("builds")
def test_the_waiting_is_left_to_the_triggerer_with_a_fixed_deadline() -> None:
    before = datetime.now(UTC)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(timeout=600.0, poke_interval=5.0).execute(task_context())
    _, row = deferred.value.trigger.serialize()
    assert (row["check"], row["arguments"], row["poll_s"]) == ("object", {"store": "builds", "key": KEY}, 5.0)
    deadline = datetime.fromisoformat(row["deadline"])
    assert timedelta(seconds=600) <= deadline - before < timedelta(seconds=610)
    # the trigger says itself what did not come; Airflow's own time out comes only after it
    assert deferred.value.timeout is not None
    assert deferred.value.timeout > timedelta(seconds=600 + 2 * 5)
    assert deferred.value.method_name == "found"


def test_a_store_that_is_away_is_waited_for_before_and_after_the_wait(
    builds: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("no answer", key=KEY, cause="connection")

    builds.put(KEY, b"{}")
    for work in (sensor().execute, lambda context: sensor().found(context, EVENT)):
        with monkeypatch.context() as patch:
            patch.setattr(FileStore, "head", away)
            with pytest.raises(TaskDeferred) as deferred:
                work(task_context())
        assert deferred.value.method_name == "outage_over"
        event = {"reason": "the pause is over"}
        done = sensor().outage_over(task_context(), event, **(deferred.value.kwargs or {}))
        assert done == f"{builds.url}/{KEY}"
