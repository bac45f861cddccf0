"""Waiting for a place of a repository and for its leases: how the checks are asked, and what no waiting cures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.errors import DestinationError
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import BadLeasePath
from include.site import changes
from include.site.changes import SeenPlace
from sensors.base import NotThere, WaitSensor
from sensors.cvmfs import LeaseFreeSensor, PlaceSensor
from tests.fakes.plainsite import FQRN, plain_file
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

READY = SeenPlace("/a/b", True, "revision 3 has it", 3)
BUSY = SeenPlace("/a/b", False, "/a is leased by 'somebody'", 3)
HOLDER = LeaseInfo(FQRN, "/a/b", "key-1", datetime.now(UTC), "night/run-0/publish try 1")
SEEN = {"found": True, "reason": "free", "since": None}


@pytest.fixture(autouse=True)
def configured(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(plain_file(tmp_path)))
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY", '{"conn_type": "cvmfs_gateway", "host": "h", "password": "hidden"}')


class Answers:
    """State that the checks see: the place, the holder of a lease, and the paths whose holder was asked for."""

    place: SeenPlace | Exception = READY
    holder: LeaseInfo | None = None
    asked: list[str]


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    made.asked = []

    def look_at(*_: object, **__: object) -> SeenPlace:
        if isinstance(made.place, Exception):
            raise made.place
        return made.place

    def holder(client: GatewayClient, repository: str, path: str) -> LeaseInfo | None:
        assert (client.key_id, repository) == ("", FQRN)
        made.asked.append(path)
        return made.holder

    monkeypatch.setattr(changes, "look_at", look_at)
    monkeypatch.setattr(GatewayClient, "holder", holder)
    return made


def sensor(kind: type[PlaceSensor | LeaseFreeSensor], **settings: Any) -> WaitSensor:
    return kind(task_id="wait", fqrn=FQRN, **{"path": "/a/b", **settings})


def test_a_place_is_told_at_once_and_what_the_trigger_saw_is_looked_at_again(answers: Answers) -> None:
    there = {"repository": FQRN, "path": "/a/b", "revision": 3, "reason": "revision 3 has it"}
    assert sensor(PlaceSensor).execute(task_context()) == there
    assert sensor(PlaceSensor).found(task_context(), SEEN) == there
    answers.place = DestinationError("/a/b", "holds something already")
    for work in (sensor(PlaceSensor).execute, lambda context: sensor(PlaceSensor).found(context, SEEN)):
        with refused(DestinationError):  # which no waiting cures
            work(task_context())


@pytest.mark.parametrize(
    ("kind", "more", "check", "arguments"),
    [
        (PlaceSensor, {"until": "free", "replaces": True}, "place", {"wanted": "free", "replaces": True}),
        (LeaseFreeSensor, {"path": "/a/b/"}, "lease-free", {}),
    ],
)
def test_the_waiting_is_left_to_the_triggerer_which_is_told_no_secret(
    answers: Answers, kind: type[Any], more: dict[str, Any], check: str, arguments: dict[str, Any]
) -> None:
    answers.place, answers.holder = BUSY, HOLDER
    with pytest.raises(TaskDeferred) as deferred:
        sensor(kind, timeout=300.0, poke_interval=3.0, **more).execute(task_context())
    _, row = deferred.value.trigger.serialize()
    del row["deadline"]
    where = {"repository": FQRN, "path": "/a/b"} | arguments
    assert row == {"check": check, "arguments": where, "poll_s": 3.0, "since": None}
    with pytest.raises(NotThere):
        sensor(kind, **more).found(task_context(), SEEN | {"found": False})


@pytest.mark.parametrize(("path", "asked"), [("/a/b", "/a/b"), ("/a/b/", "/a/b"), ("/", ""), ("", "")])
def test_a_free_path_is_seen_at_once(path: str, asked: str, answers: Answers) -> None:
    assert sensor(LeaseFreeSensor, path=path).execute(task_context()) is None
    assert answers.asked == [asked]
    answers.holder = HOLDER  # the next task may have it already
    assert sensor(LeaseFreeSensor, path=path).found(task_context(), SEEN) is None


@pytest.mark.parametrize("path", ["a/b", "/a/../b", "/a//b", "/./a", "/a\n", "/" + "x" * 256, "/\ud800"])
def test_a_path_that_is_none_is_refused_before_anybody_is_asked(path: str, answers: Answers) -> None:
    with refused(BadLeasePath, repository=FQRN, retryable=False):
        sensor(LeaseFreeSensor, path=path).execute(task_context())
    assert answers.asked == []
