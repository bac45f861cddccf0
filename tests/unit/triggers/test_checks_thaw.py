"""A task that meets a freeze is deferred, and its trigger fires once nothing holds any more."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.coordination.freeze import Freeze, freeze, thaw
from include.cvmfs.errors import RepositoryFrozen
from include.site.site import Site
from include.storage.store import Store
from operators.publishing import PublishArtifactsOperator
from tests.fakes.plainsite import FQRN, plain_site
from tests.fakes.taskcontext import task_context
from triggers import poll
from triggers.checks import unfrozen
from triggers.poll import PollTrigger


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = plain_site(tmp_path).repository_store(FQRN)
    freeze(store, Freeze("one", "disks are moved", "op@host", datetime.now(UTC)))
    return store


def test_the_trigger_fires_after_the_thaw(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = plain_site(tmp_path)
    monkeypatch.setattr(poll, "open_site", lambda _: site)
    assert unfrozen(lambda: site, FQRN).ready is False

    async def fires() -> Any:
        return await anext(PollTrigger("thaw", {"repository": FQRN}, poll_s=0.01).run())

    thaw(store, datetime.now(UTC))
    event = asyncio.run(fires())
    assert event.payload == {"found": True, "reason": f"{FQRN} is no longer frozen", "since": None}


def test_a_task_that_meets_a_freeze_is_deferred_without_a_deadline(store: Store, tmp_path: Path) -> None:
    class Task(PublishArtifactsOperator):
        def site(self) -> Site:
            return plain_site(tmp_path)

        def attempt(self, context: Any, site: Any) -> Any:
            raise RepositoryFrozen(FQRN, "frozen")

    with pytest.raises(TaskDeferred) as deferred:
        Task(task_id="publish", batch={}).execute(task_context())
    assert deferred.value.trigger.serialize()[1]["check"] == "thaw"
    assert (deferred.value.method_name, deferred.value.timeout) == ("thawed", None)
    thaw(store, datetime.now(UTC))
    with pytest.raises(RepositoryFrozen):
        Task(task_id="publish", batch={}).execute(task_context())
