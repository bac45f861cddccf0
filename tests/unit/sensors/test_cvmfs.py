"""A builder asks for its place: it is there, it is waited for by the triggerer, or it never can be."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.errors import DestinationError
from include.site import single_changes
from include.site.single_changes import SeenPlace, WantedPlace
from sensors.cvmfs import PlaceSensor
from sensors.objects import NotThere
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context
from triggers import poll
from triggers.poll import PollTrigger

FQRN = "nights.example.org"
READY = SeenPlace("/a/b", True, "revision 3 has it", 3)
BUSY = SeenPlace("/a/b", False, "/a is leased by 'somebody'", 3)


class Sensor(PlaceSensor):
    def site(self) -> Any:
        return None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is seen by and by; the last stays."""
    answers: list[Any] = [READY]

    def look_at(*_: object, **__: object) -> SeenPlace:
        one = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(single_changes, "look_at", look_at)
    return answers


def sensor(**settings: Any) -> Sensor:
    return Sensor(task_id="place", fqrn=FQRN, path="/a/b", **settings)


def test_a_place_that_is_there_is_told_at_once(seen: list[Any]) -> None:
    found = sensor().execute(task_context())
    assert found == {"repository": FQRN, "path": "/a/b", "revision": 3, "reason": "revision 3 has it"}


def test_the_waiting_is_left_to_the_triggerer(seen: list[Any]) -> None:
    seen[:] = [BUSY]
    with pytest.raises(TaskDeferred) as deferred:
        sensor(until="free", replaces=True, timeout=300.0, poke_interval=3.0).execute(task_context())
    _, row = deferred.value.trigger.serialize()
    deadline = datetime.fromisoformat(row.pop("deadline"))
    assert timedelta(seconds=290) <= deadline - datetime.now(UTC) <= timedelta(seconds=300)
    arguments = {"repository": FQRN, "path": "/a/b", "wanted": "free", "replaces": True}
    assert row == {"check": "place", "arguments": arguments, "poll_s": 3.0, "since": None}


def test_what_the_trigger_saw_is_looked_at_again(seen: list[Any]) -> None:
    assert sensor().found(task_context(), {"found": True, "reason": "x"})["revision"] == 3
    seen[:] = [BUSY]
    with pytest.raises(NotThere):
        sensor().found(task_context(), {"found": False, "reason": "it is not reserved"})


def test_what_no_waiting_cures_ends_it_at_once(seen: list[Any]) -> None:
    seen[:] = [DestinationError("/a/b", "holds something already")]
    with pytest.raises(DestinationError):
        sensor().execute(task_context())
    with pytest.raises(DestinationError):
        sensor().found(task_context(), {"found": False, "reason": "holds something already"})


def test_another_wish_is_refused_when_the_dag_is_read() -> None:
    with refused(ValueError):
        sensor(until="soon")


def watch(deadline: str | None = None) -> Any:
    async def first() -> Any:
        arguments = {"repository": FQRN, "path": "/a/b", "wanted": WantedPlace.RESERVED.value}
        return (await anext(PollTrigger("place", arguments, deadline, 0.01).run())).payload

    return asyncio.run(first())


def test_the_trigger_fires_when_it_is_there_and_at_the_deadline_says_why_not(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "open_site", lambda _: None)
    seen[:] = [BUSY, READY]
    assert watch() == {"found": True, "reason": "revision 3 has it", "since": None}
    seen[:] = [BUSY]
    late = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    assert watch(late) == {"found": False, "reason": "/a is leased by 'somebody'", "since": None}
