"""Waiting until a path is free: at once, by the triggerer, or not in time; a path that is none is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.gateway.client.values import LeaseInfo
from include.gateway.errors import BadLeasePath
from sensors.lease import LeaseFreeSensor
from sensors.objects import NotThere
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context
from triggers.lease import LeaseFreeTrigger

FQRN = "nights.example.org"
HOLDER = LeaseInfo(FQRN, "/a/b", "key-1", datetime.now(UTC), "night/run-0/publish try 1")


class Sensor(LeaseFreeSensor):
    """Asks a gateway that answers as it is told."""

    def __init__(self, *, path: str = "/a/b", holder: LeaseInfo | None = None, **kwargs: Any) -> None:
        super().__init__(task_id="wait", repository=FQRN, path=path, **kwargs)
        self.holder = holder
        self.asked: list[tuple[str, str]] = []

    def connections(self) -> Any:
        def holder(repository: str, path: str) -> LeaseInfo | None:
            self.asked.append((repository, path))
            return self.holder

        site = SimpleNamespace(repository=lambda _: SimpleNamespace(gateway="gateway_nights"))
        return SimpleNamespace(site=site, gateway=lambda _: SimpleNamespace(holder=holder))


@pytest.mark.parametrize(("path", "asked"), [("/a/b", "/a/b"), ("/a/b/", "/a/b"), ("/", ""), ("", "")])
def test_a_free_path_is_found_at_once(path: str, asked: str) -> None:
    sensor = Sensor(path=path)
    assert sensor.execute(task_context()) is None
    assert sensor.asked == [(FQRN, asked)]


def test_the_waiting_is_left_to_the_triggerer_which_is_told_no_secret() -> None:
    before = datetime.now(UTC)
    with pytest.raises(TaskDeferred) as deferred:
        Sensor(path="/a/b/", holder=HOLDER, timeout=300.0, poke_interval=3.0).execute(task_context())
    trigger = deferred.value.trigger
    assert isinstance(trigger, LeaseFreeTrigger)
    _, arguments = trigger.serialize()
    deadline = datetime.fromisoformat(arguments.pop("deadline"))
    assert timedelta(seconds=300) <= deadline - before < timedelta(seconds=310)
    place = {"connection_id": "gateway_nights", "repository": FQRN, "path": "/a/b"}
    assert arguments == {**place, "poll_s": 3.0, "since": None}
    assert deferred.value.timeout == timedelta(seconds=360)
    assert deferred.value.method_name == "free"


def test_the_task_that_comes_back_to_a_free_path_succeeds() -> None:
    event = {"free": True, "holder": None, "reason": "free", "since": None}
    assert Sensor().resume_execution("free", {"event": event}, task_context()) is None


def test_a_path_that_stays_busy_fails_and_may_be_waited_for_again() -> None:
    event = {"free": False, "holder": HOLDER.hostname, "reason": f"still held by {HOLDER.hostname!r}", "since": None}
    with pytest.raises(NotThere):
        Sensor().resume_execution("free", {"event": event}, task_context())


@pytest.mark.parametrize("path", ["a/b", "/a/../b", "/a//b", "/./a", "/a\n", "/" + "x" * 256, "/\ud800"])
def test_a_path_that_is_none_is_refused_before_anybody_is_asked(path: str) -> None:
    sensor = Sensor(path=path, holder=HOLDER)
    with refused(BadLeasePath, repository=FQRN, retryable=False):
        sensor.execute(task_context())
    assert sensor.asked == []
