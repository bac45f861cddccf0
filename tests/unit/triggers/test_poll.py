"""Triggers only watch, come back from their arguments and carry no secret; steps wait out outages without a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.module_loading import import_string

from include.cvmfs.errors import SourceError
from include.gateway.errors import GatewayUnreachable
from include.nightlies.rules.passes import pauses
from include.nightlies.steps import inherit, links, plan, prepare, publish, sources as reading, verify
from include.nightlies.steps.values import Batch, Item
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.storage.errors import Unavailable
from operators.night import PlanNightOperator, PlanPublicationOperator, SetLinksOperator
from operators.prepare import PrepareArtifactsOperator
from operators.publishing import (
    InheritArtifactsOperator,
    PrepareInheritedOperator,
    PublishArtifactsOperator,
    ReserveDestinationsOperator,
    VerifyArtifactsOperator,
)
from sensors.build import BuildSensor
from tests.fakes.loopback import Heard, LoopbackServer, respond
from tests.fakes.plainsite import FQRN, plain_file, plain_site
from tests.fakes.taskcontext import task_context
from triggers import poll
from triggers.checks import CHECKS, Observation, WaitCheck
from triggers.night import NightTrigger
from triggers.poll import PollTrigger

SECRET = "secret-of-the-key"
THEN = "2026-11-21T00:00:00+00:00"


class Leases(LoopbackServer):
    """A gateway that answers which leases it has, one answer after the other."""

    METHODS = ("GET",)

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[dict[str, Any]] = [{}]
        self.seen: list[str] = []

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        self.seen.append(str(request.headers))
        held = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        respond(handler, 200, json.dumps({"status": "ok", "data": held}).encode())


@pytest.fixture
def gateway(builds: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leases]:
    with Leases() as server:
        host, _, port = server.address.partition(":")
        connection = {"conn_type": "cvmfs_gateway", "host": host, "port": int(port), "login": "worker"}
        monkeypatch.setenv("AIRFLOW_CONN_GATEWAY", json.dumps(connection | {"password": SECRET}))
        yield server


def _lease(path: str) -> dict[str, Any]:
    expires = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC")
    return {f"nights.example.org{path}": {"key_id": "k", "path": f"nights.example.org{path}", "expires": expires,
                                          "hostname": "dag/run/publish try 1"}}  # fmt: skip


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(plain_file(tmp_path)))
    folder = tmp_path / "builds" / "main" / "2026-11-21"
    folder.mkdir(parents=True)
    return folder / "index.json"


def event_of(trigger: Any) -> dict[str, Any]:
    async def first() -> Any:
        return await anext(trigger.run())

    return dict(asyncio.run(asyncio.wait_for(first(), 20)).payload)


def lease_free(deadline: str | None = None, since: str | None = None) -> PollTrigger:
    return PollTrigger("lease-free", {"repository": FQRN, "path": "/a/b"}, deadline, 0.05, since)


def test_a_wait_for_a_lease_ends_once_no_lease_overlaps_the_path_or_at_its_deadline(gateway: Leases) -> None:
    gateway.answers[:] = [_lease("/a/b"), _lease("/a"), _lease("/a/bc")]
    trigger = lease_free(since="then")
    event = event_of(trigger)
    assert event == {"found": True, "reason": f"{FQRN}/a/b is free", "since": "then"}
    assert len(gateway.seen) == 3, "a lease above or at the path is in the way, one beside it is not"
    assert SECRET not in json.dumps([trigger.serialize(), event])
    assert not any("authorization" in headers.lower() for headers in gateway.seen)
    # a restart of the triggerer prolongs nothing
    gateway.answers[:] = [_lease("/a/b/c")]
    event = event_of(_again(lease_free(datetime.now(UTC).isoformat())))
    assert (event["found"], "'dag/run/publish try 1' with key k" in event["reason"]) == (False, True)
    assert len(gateway.seen) == 4


def test_a_wait_for_an_object_ends_when_it_is_stored(builds: Path) -> None:
    builds.write_bytes(b"x")
    event = event_of(PollTrigger("object", {"store": "builds", "key": "main/2026-11-21/index.json"}))
    assert event["found"]
    assert "has 1 bytes" in event["reason"]
    (builds.parents[3] / "site.yaml").write_text("slots: {main: ")
    assert not event_of(PollTrigger("object", {"store": "builds", "key": "x"}))["found"], "its configuration is damaged"


def test_a_pause_ends_at_its_deadline() -> None:
    end = (datetime.now(UTC) + timedelta(seconds=0.2)).isoformat()
    event = event_of(PollTrigger("pause", {}, end, since="then"))
    assert datetime.now(UTC) >= datetime.fromisoformat(end)
    assert event["since"] == "then"


class _Looks:
    """A check that does one thing after the other, and the last again and again."""

    def __init__(self, *steps: Exception | bool) -> None:
        self.steps = list(steps)

    def __call__(self, _: Any, **arguments: Any) -> Observation:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return Observation(step, "seen")


@pytest.mark.parametrize(
    ("steps", "deadline", "found"),
    [
        ((Unavailable("away", key="a", cause="connection"), False, True), None, True),
        ((Unavailable("away", key="a", cause="connection"),), THEN, False),
        ((SettingsError("no store s"), True), None, False),
        ((ValueError("broken"), True), None, False),
        ((False,), THEN, False),
        ((True,), THEN, True),
    ],
)
def test_an_error_that_may_pass_is_waited_out_and_any_other_ends_the_wait(
    steps: tuple[Any, ...], deadline: str | None, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[str, WaitCheck]", CHECKS), "object", WaitCheck(_Looks(*steps), 0.01))
    event = event_of(PollTrigger("object", {"store": "s", "key": "k"}, deadline))
    assert event["found"] is found
    assert event["reason"] == str(steps[0] if isinstance(steps[0], Exception) and not found else "seen")


@pytest.mark.parametrize(
    "trigger",
    [
        PollTrigger("object", {"store": "builds", "key": "x"}, THEN, 5.0, "since"),
        NightTrigger({"slot": "main"}, {"first": "scheduled__1"}, 5.0, "index_events_main"),
    ],
)
def test_a_trigger_comes_back_from_its_arguments(trigger: Any) -> None:
    assert _again(trigger).serialize() == trigger.serialize()


def _again(trigger: Any) -> Any:
    """As the triggerer makes it from what was serialized."""
    path, arguments = trigger.serialize()
    return import_string(path)(**json.loads(json.dumps(arguments)))


NIGHT = {
    "run": "r", "slot": "main", "date": "2026-11-21", "reason": "why", "projects": [], "platforms": [],
    "dry_run": False,
}  # fmt: skip
BATCH = Batch("r", FQRN, (Item("A/x", "/a", "s3://b/a"),)).to_json()
PARAMS = {"repository": FQRN, "path": "/a", "source": "s3://b/a", "mode": "refuse", "dry_run": False}
AWAY = Unavailable("index.json in s3://builds: no answer; gave up after 6 attempts", key="a", cause="connection")
UNREACHABLE = GatewayUnreachable("no connection to 127.0.0.1")
STEPS: dict[str, tuple[Any, Any, str, Exception]] = {
    "find_build": (BuildSensor(task_id="a", slot="main"), reading, "read_again", AWAY),
    "plan": (PlanNightOperator(task_id="b", night=NIGHT), plan, "plan_night", AWAY),
    "plan by hand": (PlanPublicationOperator(task_id="c"), plan, "plan_publication", AWAY),
    "prepare": (PrepareArtifactsOperator(task_id="d", batch=BATCH), prepare, "prepare_batch", AWAY),
    "prepare_inherited": (PrepareInheritedOperator(task_id="e", batch=BATCH), inherit, "prepare_inherited", AWAY),
    "inherited": (InheritArtifactsOperator(task_id="f", batch=BATCH), inherit, "inherit_batch", UNREACHABLE),
    "reserve": (ReserveDestinationsOperator(task_id="g", batches=[BATCH]), publish, "reserve_run", UNREACHABLE),
    "publish": (PublishArtifactsOperator(task_id="h", batch=BATCH), publish, "publish_batch", UNREACHABLE),
    "verify, tidying": (VerifyArtifactsOperator(task_id="i", batches=[BATCH]), verify, "tidy_run", UNREACHABLE),
    "verify": (VerifyArtifactsOperator(task_id="j", batches=[]), verify, "verify_run", AWAY),
    "links": (SetLinksOperator(task_id="k", night=NIGHT), links, "build_of_night", UNREACHABLE),
}


class Works(Exception):
    """The step came as far as its work, and the service was there."""


@pytest.fixture(params=STEPS)
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, Any]:
    """An operator, and how to say what its work meets."""
    operator, module, name, error = STEPS[request.param]
    monkeypatch.setattr(type(operator), "site", lambda _: plain_site(tmp_path))
    monkeypatch.setattr(operator, "_pauses", 0)

    def meets(met: Exception) -> None:
        def work(*_: object, **__: object) -> None:
            raise met

        monkeypatch.setattr(module, name, work)

    meets(error)
    return operator, meets


def context() -> Any:
    return task_context(build_date="2026-11-20", allow_future=True, **PARAMS)


def test_a_step_waits_out_half_an_hour_in_pauses_that_grow_and_then_fails_with_the_outage(
    step: tuple[Any, Any],
) -> None:
    operator, _ = step
    waited: list[int] = []
    work: Any = operator.execute
    for _ in pauses(SiteSettings().outage_minutes * 60):
        with pytest.raises(TaskDeferred) as deferred:
            work(context())
        _, row = deferred.value.trigger.serialize()
        assert (row["check"], deferred.value.method_name) == ("pause", "outage_over")
        waited.append(round((datetime.fromisoformat(row["deadline"]) - datetime.now(UTC)).total_seconds()))
        number = (deferred.value.kwargs or {})["number"]
        work = lambda it, number=number: operator.outage_over(it, {"reason": "over"}, number)  # noqa: E731
    assert sum(waited) >= 30 * 60
    assert waited == sorted(waited)
    with pytest.raises((Unavailable, GatewayUnreachable)):
        work(context())


def test_a_step_goes_on_when_the_service_is_back_and_fails_at_once_by_what_is_no_outage(step: tuple[Any, Any]) -> None:
    operator, meets = step
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    for met in (Works(), SourceError("a", "b")):
        meets(met)
        with pytest.raises(type(met)):
            operator.outage_over(context(), {"reason": "over"}, number=1)


def test_another_outage_after_long_work_is_waited_for_from_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    operator, site = PlanNightOperator(task_id="plan", night=NIGHT), plain_site(tmp_path)
    times = iter([0.0, poll.RECOVERED_S + 1])
    monkeypatch.setattr(poll.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(operator, "_pauses", 3)

    def work() -> None:
        raise AWAY

    with pytest.raises(TaskDeferred) as deferred:
        operator.outlasting(site, work)
    assert deferred.value.kwargs == {"number": 1}
