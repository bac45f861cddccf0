"""A task whose dependency is not published yet holds no worker, and says at the end what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.nightlies.steps.errors import DEPENDENCY_WAIT_S, DependencyPending
from operators.lease import LeaseTaskOperator, WaitedTooLong
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context
from triggers.pause import PauseTrigger

PENDING = DependencyPending("B/x", "it depends on A/x (preparing)", repository="nights.example.org", path="/n/B")


class Waiter(LeaseTaskOperator):
    """Its dependency never comes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(task_id="waiter", patience_s=0.0, **kwargs)
        self.why = ""

    def connections(self) -> Any:
        return SimpleNamespace(site=SimpleNamespace(repositories={}, gateway=SimpleNamespace(max_lease_time_s=120)))

    def attempt(self, context: Any, connections: Any) -> Mapping[str, Any]:
        return {"B/x": PENDING}

    def give_up(self, context: Any, connections: Any, busy: Mapping[str, Any], why: str) -> None:
        self.why = why

    def result(self, context: Any, connections: Any) -> None:
        raise AssertionError("it was never free")


def test_it_is_deferred_to_look_again_after_a_while_for_as_long_as_a_preparation_may_take() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        Waiter().execute(task_context())
    assert isinstance(deferred.value.trigger, PauseTrigger)
    assert deferred.value.timeout is not None
    assert deferred.value.timeout.total_seconds() > DEPENDENCY_WAIT_S


def test_when_it_never_comes_the_task_says_what_it_waited_for() -> None:
    waiter, long_ago = Waiter(), datetime.now(UTC) - timedelta(seconds=DEPENDENCY_WAIT_S + 120)
    with refused(WaitedTooLong, artifact="B/x"):
        waiter.resume(task_context(), {"reason": "looking again", "since": long_ago.isoformat()})
    assert "clear the run from its plan on" in waiter.why
