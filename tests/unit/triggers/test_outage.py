"""Every step of a run waits out an outage of store or gateway without a worker, and fails at once by anything else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.errors import SourceError
from include.gateway.errors import GatewayUnreachable
from include.nightlies.rules.passes import pauses
from include.nightlies.steps import inherit, links, plan, prepare, publish, sources as reading, verify
from include.nightlies.steps.values import Batch, Item
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
from tests.fakes.plainsite import FQRN, plain_site
from tests.fakes.taskcontext import task_context
from triggers import outage

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
    times = iter([0.0, outage.RECOVERED_S + 1])
    monkeypatch.setattr(outage.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(operator, "_pauses", 3)

    def work() -> None:
        raise AWAY

    with pytest.raises(TaskDeferred) as deferred:
        operator.outlasting(site, work)
    assert deferred.value.kwargs == {"number": 1}
