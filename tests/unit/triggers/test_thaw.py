"""A task that meets a freeze is deferred, and its trigger fires once nothing holds any more."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.coordination.freeze import Freeze, freeze, thaw
from include.cvmfs.errors import RepositoryFrozen
from include.storage.file import FileStore
from operators.publish import PublishArtifactsOperator
from tests.fakes.taskcontext import task_context
from triggers.thaw import ThawTrigger

FQRN = "r.example.org"


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / FQRN)
    freeze(store, Freeze("one", "disks are moved", "op@host", datetime.now(UTC)))
    return store


def test_the_trigger_comes_back_from_its_arguments_and_fires_after_the_thaw(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, arguments = ThawTrigger(FQRN, poll_s=0.01).serialize()
    assert (path, arguments) == ("triggers.thaw.ThawTrigger", {"repository": FQRN, "poll_s": 0.01})
    connections: Any = SimpleNamespace(repository_store=lambda _: store)
    trigger = ThawTrigger(**arguments)
    assert trigger._look(connections) is None

    async def opened() -> Any:
        return connections

    monkeypatch.setattr(trigger, "_connections", opened)
    thaw(store, datetime.now(UTC))
    event = asyncio.run(anext(trigger.run()))
    assert event.payload == {"found": True, "reason": f"{FQRN} is frozen no more"}


def test_a_task_that_meets_a_freeze_is_deferred_without_a_deadline(store: FileStore) -> None:
    class Task(PublishArtifactsOperator):
        def connections(self) -> Any:
            return SimpleNamespace(repository_store=lambda _: store)

        def attempt(self, context: Any, connections: Any) -> Any:
            raise RepositoryFrozen(FQRN, "frozen")

    with pytest.raises(TaskDeferred) as deferred:
        Task(task_id="publish", batch={}).execute(task_context())
    assert isinstance(deferred.value.trigger, ThawTrigger)
    assert (deferred.value.method_name, deferred.value.timeout) == ("thawed", None)
    thaw(store, datetime.now(UTC))
    with pytest.raises(RepositoryFrozen):
        Task(task_id="publish", batch={}).execute(task_context())
