"""Runs of a night: which an event of an index begins, how they keep apart, and which judges the build."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from hooks.task import PLAN
from include.nightlies.rules.passes import Pass
from include.nightlies.steps.values import Night
from include.site.site import Site
from operators.night import (
    BeginNightOperator,
    CheckBuildOperator,
    CheckCompletenessOperator,
    ReadIndexEventsOperator,
    StartNextPassOperator,
    index_asset,
)
from sensors.build import BuildSensor
from tests.fakes.plainsite import plain_site
from tests.fakes.taskcontext import task_context

NIGHT = Night("night/run-1", "main", date(2026, 11, 21), "why")


@pytest.mark.parametrize(
    ("night", "planned", "says"),
    [
        (replace(NIGHT, dry_run=True), True, "dry run"),
        (replace(NIGHT, last=False), True, "the night's last pass judges the build"),
        (NIGHT, False, "nothing was planned"),
    ],
)
def test_a_build_is_judged_once_it_was_planned_by_the_last_pass_and_in_no_dry_run(
    night: Night, planned: bool, says: str
) -> None:
    xcoms = {(PLAN, "return_value"): []} if planned else {}
    with pytest.raises(AirflowSkipException) as skipped:
        CheckBuildOperator(task_id="check_build", night=night.to_json()).execute(task_context(xcoms=xcoms))
    assert says in str(skipped.value)


NOW = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)
TODAY, TOMORROW = "2026-11-20", "2026-11-21"
SLOTS = {
    "either": {"begins": "either", "schedule": "0 2 * * *"},
    "artifact": {"begins": "artifact", "cutoff": "5h"},
    "schedule": {"schedule": "0 2 * * *"},
}


def site(kind: str) -> Site:
    return plain_site(Path("/nowhere"), timezone="Europe/Zurich", **SLOTS[kind])


@pytest.fixture(autouse=True)
def at_night(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operators.night.clock", lambda: NOW)


def on_site(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for one in (ReadIndexEventsOperator, BeginNightOperator, BuildSensor):
        monkeypatch.setattr(one, "site", lambda _: site(kind))


def heard(*extras: Any, begun: tuple[datetime, ...] = ()) -> list[str]:
    context = task_context()
    context["triggering_asset_events"] = {"asset": [SimpleNamespace(extra=one) for one in extras]}
    context["ti"].get_dr_count = lambda dag_id, logical_dates: sum(one in begun for one in logical_dates)
    return ReadIndexEventsOperator(task_id="heard", slot="main").execute(context)


def test_events_begin_the_nights_of_the_dates_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    on_site(monkeypatch, "either")
    watcher = {"from_trigger": True, "payload": {"date": TOMORROW}}
    assert heard({"date": TOMORROW}, watcher, {}) == [TODAY, TOMORROW]
    assert heard({"date": "tomorrow"}, {"date": "2020-01-01"}, {"date": 7}) == []
    assert heard({"date": TOMORROW}, begun=(datetime(2026, 11, 21, 1, tzinfo=UTC),)) == [], "its schedule began it"
    on_site(monkeypatch, "schedule")
    assert heard({"date": TOMORROW}) == []


def test_the_first_run_has_an_id_and_an_end_that_follow_from_the_night(monkeypatch: pytest.MonkeyPatch) -> None:
    on_site(monkeypatch, "artifact")
    with pytest.raises(DagRunTriggerException) as begun:
        BeginNightOperator(task_id="begin", slot="main", day=TOMORROW).execute(task_context())
    asked = begun.value
    assert (asked.trigger_dag_id, asked.dag_run_id) == ("nightly_install_main", "night__2026-11-21__first")
    assert asked.skip_when_already_exists
    assert asked.conf is not None
    assert Pass.from_json(asked.conf["pass"]) == Pass(asked.dag_run_id, 1, NOW + timedelta(hours=5))
    assert asked.conf["build_date"] == TOMORROW


def test_a_scheduled_run_leaves_its_night_to_the_run_that_an_artifact_began_and_the_message_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_site(monkeypatch, "either")
    context = task_context(run_type="scheduled", logical_date=datetime(2026, 11, 21, 1, tzinfo=UTC))
    handed: dict[str, Any] = {}
    context["ti"].get_dr_count = lambda dag_id, run_ids: int(run_ids == ["night__2026-11-21__first"])
    context["ti"].xcom_push = lambda key, value: handed.update({key: value})
    with pytest.raises(AirflowSkipException):
        BuildSensor(task_id="find_build", slot="main").execute(context)
    night = handed["return_value"]
    # nothing fails the run, and no second pass begins
    for operator in (
        CheckCompletenessOperator(task_id="gate", night=night),
        StartNextPassOperator(task_id="next_pass", night=night, plan="plan"),
    ):
        with pytest.raises(AirflowSkipException, match="the night goes on in run night__2026-11-21__first"):
            operator.execute(context)


@pytest.mark.parametrize(("kind", "watchers"), [("schedule", 0), ("either", 1), ("artifact", 1)])
def test_a_watcher_looks_for_first_artifacts_only_where_they_begin_nights(kind: str, watchers: int) -> None:
    assert len(index_asset(site(kind).settings.slot("main")).watchers) == watchers
