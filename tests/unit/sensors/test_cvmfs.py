"""A builder asks for its place: it is there, it is waited for by the triggerer, or it never can be."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.errors import DestinationError
from include.gateway.client.client import GatewayClient
from include.gateway.client.values import LeaseInfo
from include.gateway.errors import BadLeasePath, GatewayError, GatewayUnreachable
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets
from include.site import single_changes
from include.site.single_changes import SeenPlace, WantedPlace
from sensors.cvmfs import LeaseFreeSensor, PlaceSensor
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
    """Answers in their order; the last one stays."""
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


def test_a_place_is_told_at_once_and_what_the_trigger_saw_is_looked_at_again(seen: list[Any]) -> None:
    there = {"repository": FQRN, "path": "/a/b", "revision": 3, "reason": "revision 3 has it"}
    assert sensor().execute(task_context()) == sensor().found(task_context(), {"found": True, "reason": "x"}) == there
    seen[:] = [BUSY]
    with pytest.raises(NotThere):
        sensor().found(task_context(), {"found": False, "reason": "it is not reserved"})


def test_the_waiting_is_left_to_the_triggerer(seen: list[Any]) -> None:
    seen[:] = [BUSY]
    with pytest.raises(TaskDeferred) as deferred:
        sensor(until="free", replaces=True, timeout=300.0, poke_interval=3.0).execute(task_context())
    _, row = deferred.value.trigger.serialize()
    del row["deadline"]
    arguments = {"repository": FQRN, "path": "/a/b", "wanted": "free", "replaces": True}
    assert row == {"check": "place", "arguments": arguments, "poll_s": 3.0, "since": None}


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


HOLDER = LeaseInfo(FQRN, "/a/b", "key-1", datetime.now(UTC), "night/run-0/publish try 1")


class LeaseSensor(LeaseFreeSensor):
    """Return the answers of a site with one gateway."""

    def __init__(self, *, path: str = "/a/b", **kwargs: Any) -> None:
        super().__init__(task_id="wait", fqrn=FQRN, path=path, **kwargs)

    def site(self) -> Any:
        site = SiteSettings()
        settings = SimpleNamespace(
            repository=lambda _: SimpleNamespace(gateway="gw"), gateway=site.gateway, outage_minutes=site.outage_minutes
        )
        secrets = SimpleNamespace(get=lambda name: ConnectionSecrets(id=name, host="127.0.0.1", password="hidden"))
        return SimpleNamespace(settings=settings, secrets=secrets)


class Holders:
    """Question to the gateway, and the holder that it names."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.holder: LeaseInfo | GatewayError | None = None


@pytest.fixture(autouse=True)
def gateway(monkeypatch: pytest.MonkeyPatch) -> Holders:
    holders = Holders()

    def holder(client: GatewayClient, repository: str, path: str) -> LeaseInfo | None:
        assert client.key_id == ""
        holders.asked.append((repository, path))
        if isinstance(holders.holder, GatewayError):
            raise holders.holder
        return holders.holder

    monkeypatch.setattr(GatewayClient, "holder", holder)
    return holders


@pytest.mark.parametrize(("path", "asked"), [("/a/b", "/a/b"), ("/a/b/", "/a/b"), ("/", ""), ("", "")])
def test_a_free_path_is_found_at_once(path: str, asked: str, gateway: Holders) -> None:
    assert LeaseSensor(path=path).execute(task_context()) is None
    assert gateway.asked == [(FQRN, asked)]


def test_the_waiting_for_a_lease_is_left_to_the_triggerer_which_is_told_no_secret(gateway: Holders) -> None:
    gateway.holder = HOLDER
    with pytest.raises(TaskDeferred) as deferred:
        LeaseSensor(path="/a/b/", timeout=300.0, poke_interval=3.0).execute(task_context())
    _, row = deferred.value.trigger.serialize()
    del row["deadline"]
    arguments = {"repository": FQRN, "path": "/a/b"}
    assert row == {"check": "lease-free", "arguments": arguments, "poll_s": 3.0, "since": None}


FREE = {"found": True, "reason": "free", "since": None}


def test_a_task_that_comes_back_goes_by_what_the_trigger_saw(gateway: Holders) -> None:
    for holder in (None, HOLDER):  # the next task may have it already
        gateway.holder = holder
        assert LeaseSensor().resume_execution("found", {"event": FREE}, task_context()) is None
    with pytest.raises(NotThere):
        LeaseSensor().resume_execution("found", {"event": FREE | {"found": False}}, task_context())


def test_a_gateway_that_is_away_is_waited_for_before_and_after_the_wait(gateway: Holders) -> None:
    for work in (LeaseSensor().execute, lambda context: LeaseSensor().found(context, FREE)):
        gateway.holder = GatewayUnreachable("no connection to 127.0.0.1")
        with pytest.raises(TaskDeferred) as deferred:
            work(task_context())
        assert deferred.value.method_name == "outage_over"
        gateway.holder = None
        event = {"reason": "the pause is over"}
        assert LeaseSensor().outage_over(task_context(), event, **(deferred.value.kwargs or {})) is None


@pytest.mark.parametrize("path", ["a/b", "/a/../b", "/a//b", "/./a", "/a\n", "/" + "x" * 256, "/\ud800"])
def test_a_path_that_is_none_is_refused_before_anybody_is_asked(path: str, gateway: Holders) -> None:
    with refused(BadLeasePath, repository=FQRN, retryable=False):
        LeaseSensor(path=path).execute(task_context())
    assert gateway.asked == []
