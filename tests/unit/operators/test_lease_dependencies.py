"""A task whose dependency is not published yet holds no worker, and says at the end what it waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.nightlies.steps.errors import DEPENDENCY_WAIT_S, DependencyPending
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from operators.lease import Done, LeaseTaskOperator, WaitedTooLong, Waiting
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

PENDING = DependencyPending("B/x", "it depends on A/x (preparing)", repository="nights.example.org", path="/n/B")


class Waiter(LeaseTaskOperator):
    """Its dependency never comes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(task_id="waiter", patience_s=0.0, **kwargs)
        self.why = ""

    def site(self) -> Site:
        return Site(SiteSettings.model_validate({"gateway": {"max_lease_time_s": 120}}), EnvSecrets({}))

    def attempt(self, context: Any, site: Any) -> Done | Waiting:
        return Waiting({"B/x": PENDING}, self.given_up)

    def given_up(self, name: str, why: str) -> None:
        assert name == "B/x"
        self.why = why


def test_it_is_deferred_to_look_again_after_a_while_for_as_long_as_a_preparation_may_take() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        Waiter().execute(task_context())
    assert deferred.value.trigger.serialize()[1]["check"] == "pause"
    assert deferred.value.timeout is not None
    assert deferred.value.timeout.total_seconds() > DEPENDENCY_WAIT_S


def test_when_it_never_comes_the_task_says_what_it_waited_for() -> None:
    waiter, long_ago = Waiter(), datetime.now(UTC) - timedelta(seconds=DEPENDENCY_WAIT_S + 120)
    with refused(WaitedTooLong, artifact="B/x"):
        waiter.resume(task_context(), {"reason": "looking again", "since": long_ago.isoformat()})
    assert "clear the run from its plan on" in waiter.why
