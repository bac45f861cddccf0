"""Waiting until a path is free: at once, by the triggerer, or not in time; a path that is none is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.gateway.client.client import GatewayClient
from include.gateway.client.values import LeaseInfo
from include.gateway.errors import BadLeasePath, GatewayError, GatewayUnreachable
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets
from sensors.cvmfs import LeaseFreeSensor
from sensors.objects import NotThere
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

FQRN = "nights.example.org"
HOLDER = LeaseInfo(FQRN, "/a/b", "key-1", datetime.now(UTC), "night/run-0/publish try 1")


class Sensor(LeaseFreeSensor):
    """Of a site with one gateway."""

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
    """What the gateway is asked, and whom it names."""

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
    assert Sensor(path=path).execute(task_context()) is None
    assert gateway.asked == [(FQRN, asked)]


def test_the_waiting_is_left_to_the_triggerer_which_is_told_no_secret(gateway: Holders) -> None:
    gateway.holder = HOLDER
    before = datetime.now(UTC)
    with pytest.raises(TaskDeferred) as deferred:
        Sensor(path="/a/b/", timeout=300.0, poke_interval=3.0).execute(task_context())
    path, row = deferred.value.trigger.serialize()
    assert path == "triggers.poll.PollTrigger"
    deadline = datetime.fromisoformat(row.pop("deadline"))
    assert timedelta(seconds=300) <= deadline - before < timedelta(seconds=310)
    arguments = {"repository": FQRN, "path": "/a/b"}
    assert row == {"check": "lease-free", "arguments": arguments, "poll_s": 3.0, "since": None}
    assert deferred.value.timeout is not None
    assert deferred.value.timeout > timedelta(seconds=300 + 2 * 3)
    assert deferred.value.method_name == "found"


FREE = {"found": True, "reason": "free", "since": None}
BUSY = {"found": False, "reason": f"held by {HOLDER.hostname!r}", "since": None}


def test_the_task_that_comes_back_to_a_path_that_became_free_succeeds(gateway: Holders) -> None:
    for holder in (None, HOLDER):  # the next task may have it already
        gateway.holder = holder
        assert Sensor().resume_execution("found", {"event": FREE}, task_context()) is None


def test_a_path_that_stays_busy_fails_and_may_be_waited_for_again(gateway: Holders) -> None:
    gateway.holder = HOLDER
    with pytest.raises(NotThere):
        Sensor().resume_execution("found", {"event": BUSY}, task_context())
    assert NotThere.retryable


def test_a_gateway_that_is_away_is_waited_for_before_and_after_the_wait(gateway: Holders) -> None:
    for work in (Sensor().execute, lambda context: Sensor().found(context, FREE)):
        gateway.holder = GatewayUnreachable("no connection to 127.0.0.1")
        with pytest.raises(TaskDeferred) as deferred:
            work(task_context())
        assert deferred.value.method_name == "outage_over"
        gateway.holder = None
        event = {"reason": "the pause is over"}
        assert Sensor().outage_over(task_context(), event, **(deferred.value.kwargs or {})) is None


@pytest.mark.parametrize("path", ["a/b", "/a/../b", "/a//b", "/./a", "/a\n", "/" + "x" * 256, "/\ud800"])
def test_a_path_that_is_none_is_refused_before_anybody_is_asked(path: str, gateway: Holders) -> None:
    with refused(BadLeasePath, repository=FQRN, retryable=False):
        Sensor(path=path).execute(task_context())
    assert gateway.asked == []
