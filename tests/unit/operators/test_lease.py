"""Waiting for a busy path, giving up, and being killed with a lease in hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.errors import CollectionRunning
from include.gateway.client.values import LeaseInfo
from include.gateway.errors import PathBusy
from include.publishers.server.errors import NodeBusy
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from operators.lease_task import MARGIN_S, NODE_PAUSE_S, Done, Killed, LeaseTaskOperator, WaitedTooLong, Waiting
from tests.fakes.taskcontext import task_context
from triggers.poll import PollTrigger

HOLDER = LeaseInfo("nights.example.org", "/a/b", "key-1", datetime.now(UTC), "night/run-0/publish try 1")


def busy(remaining_s: float = 10.0) -> PathBusy:
    return PathBusy(
        "path busy", time_remaining_s=remaining_s, holder=HOLDER, repository="nights.example.org", path="/a/b"
    )


class Waiter(LeaseTaskOperator):
    """Finds its path busy a given number of times."""

    def __init__(self, times: int, remaining_s: float = 10.0, **kwargs: Any) -> None:
        super().__init__(task_id="waiter", **kwargs)
        self.times = times
        self.remaining_s = remaining_s
        self.given_up: list[str] = []

    def site(self) -> Site:
        return Site(SiteSettings.model_validate({"gateway": {"max_lease_time_s": 120}}), EnvSecrets({}))

    def attempt(self, context: Any, site: Any) -> Done | Waiting:
        self.times -= 1
        if self.times < 0:
            return Done("published")
        return Waiting({"A/x": busy(self.remaining_s)}, lambda name, why: self.given_up.append(f"{name}: {why}"))


def test_a_path_that_is_free_soon_is_waited_for_in_the_task() -> None:
    assert Waiter(times=1, patience_s=5.0).execute(task_context()) == "published"


def test_a_path_that_stays_busy_is_left_to_the_trigger_which_is_told_no_secret() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        Waiter(times=99, patience_s=0.0).execute(task_context())
    trigger = deferred.value.trigger
    assert isinstance(trigger, PollTrigger)
    _, row = trigger.serialize()
    assert row["check"] == "lease-free"
    assert row["arguments"] == {"repository": "nights.example.org", "path": "/a/b"}


def test_a_publisher_node_that_is_busy_is_looked_at_again_after_a_pause() -> None:
    waiter = Waiter(times=99, patience_s=0.0)
    taken = NodeBusy("the node is busy", time_remaining_s=7200, repository="nights.example.org", path="/a/b")
    waiter.attempt = lambda context, site: Waiting({"A/x": taken})  # type: ignore[method-assign]
    with pytest.raises(TaskDeferred) as deferred:
        waiter.execute(task_context())
    _, row = deferred.value.trigger.serialize()
    assert row["check"] == "pause"
    left = datetime.fromisoformat(row["deadline"]) - datetime.now(UTC)
    assert timedelta() < left <= timedelta(seconds=NODE_PAUSE_S)
    assert row["since"] is not None
    assert deferred.value.timeout is not None
    assert deferred.value.timeout > timedelta(seconds=7000)


def test_a_collection_is_waited_for_until_it_has_swept_the_shards_that_count() -> None:
    waiter = Waiter(times=99, patience_s=0.0)
    running = CollectionRunning("/a/b", "condemned", 7, (3, 200), "nights.example.org")
    waiter.attempt = lambda context, site: Waiting({"A/x": running})  # type: ignore[method-assign]
    with pytest.raises(TaskDeferred) as deferred:
        waiter.execute(task_context())
    _, row = deferred.value.trigger.serialize()
    assert row["check"] == "collection"
    assert row["arguments"] == {"repository": "nights.example.org", "number": 7, "shards": [3, 200]}
    left = datetime.fromisoformat(row["deadline"]) - datetime.now(UTC)
    assert left > timedelta(seconds=running.time_remaining_s)


def test_the_whole_waiting_lasts_at_least_one_lease_lifetime_and_a_margin() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        Waiter(times=99, patience_s=0.0).execute(task_context())
    deadline = datetime.fromisoformat(deferred.value.trigger.serialize()[1]["deadline"])
    assert deadline - datetime.now(UTC) > timedelta(seconds=120 + MARGIN_S - 5)


def test_a_holder_that_has_longer_left_than_a_lifetime_is_waited_for_as_long() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        Waiter(times=99, remaining_s=7000.0, patience_s=0.0).execute(task_context())
    deadline = datetime.fromisoformat(deferred.value.trigger.serialize()[1]["deadline"])
    assert deadline - datetime.now(UTC) > timedelta(seconds=7000)


def test_waiting_counts_from_its_beginning_over_deferrals_and_the_message_names_the_holder() -> None:
    operator = Waiter(times=99, patience_s=0.0)
    since = datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(WaitedTooLong, match=r"night/run-0/publish try 1.*key-1"):
        operator.resume(task_context(), {"free": False, "reason": "still held", "since": since.isoformat()})
    assert len(operator.given_up) == 1
    assert WaitedTooLong.retryable


def test_a_path_that_is_free_when_the_task_comes_back_is_published() -> None:
    event = {"free": True, "reason": "free", "since": datetime.now(UTC).isoformat()}
    assert Waiter(times=0).resume(task_context(), event) == "published"


def test_a_killed_task_gives_its_lease_back_and_stops() -> None:
    dropped: list[str] = []

    class Dies(Waiter):
        def attempt(self, context: Any, site: Any) -> Done | Waiting:
            self.on_lease(lambda: dropped.append("lease"))
            self.on_kill()  # as the signal handler does, on top of what runs
            raise AssertionError("went on")

    with pytest.raises(Killed):
        Dies(times=0).execute(task_context())
    assert dropped == ["lease"]
    assert not issubclass(Killed, Exception), "nothing on the way may take it for a failed artifact"


def test_a_task_that_is_not_at_work_has_nothing_to_give_back() -> None:
    Waiter(times=0).on_kill()
