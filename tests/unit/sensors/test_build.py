"""Which night a run is for, and how long it waits for the build."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include.nightlies.errors import BUILD_DATE_REFUSED
from include.nightlies.rules.passes import Pass
from include.nightlies.steps.values import Night
from sensors.build import BuildSensor, night_of, wait_until
from tests.fakes.plainsite import plain_site, slot
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def test_a_night_has_the_date_of_the_run_and_the_choice_of_the_form() -> None:
    late = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)  # rules/test_passes_build_date.py has what goes before what
    for more, day in (({}, 21), ({"partition_key": "2026-11-02"}, 2), ({"build_date": "2026-11-01"}, 1)):
        assert night_of(task_context(logical_date=late, **more), slot(), NOW)[0].date == date(2026, 11, day)
    assert night_of(task_context(logical_date=late), slot(date_offset=-1), NOW)[0].date == date(2026, 11, 20)
    form = {"build_date": "2026-11-01", "projects": ["A"], "platforms": None, "dry_run": True}
    night, _ = night_of(task_context(**form), slot(), NOW)
    assert (night.run, night.projects, night.platforms, night.dry_run) == ("night/run-1", ("A",), (), True)
    tomorrow = {"build_date": "2026-11-22"}
    for refusing in ({"build_date": "2026-11-19", "run_type": "backfill", "logical_date": NOW}, tomorrow):
        with refused(BUILD_DATE_REFUSED):
            night_of(task_context(**refusing), slot(), NOW)
    assert night_of(task_context(**tomorrow, allow_future=True), slot(), NOW)[0].date == date(2026, 11, 22)


def test_a_run_by_hand_or_of_a_backfill_does_not_wait_unless_told_to() -> None:
    assert wait_until(task_context(), slot(), NOW) is None
    assert wait_until(task_context(run_type="backfill"), slot(), NOW) is None
    assert wait_until(task_context(wait_minutes=5), slot(), NOW) == NOW + timedelta(minutes=5)
    assert wait_until(task_context(run_type="scheduled", wait_minutes=0), slot(), NOW) is None


def test_a_scheduled_run_waits_until_the_cutoff_of_its_slot_and_for_nothing_after_it() -> None:
    scheduled = task_context(run_type="scheduled", logical_date=NOW - timedelta(minutes=1))
    assert wait_until(scheduled, slot(), NOW) == NOW + timedelta(hours=5, minutes=59)
    # six in the morning in Zurich is five in UTC in November
    assert wait_until(scheduled, slot(cutoff="06:00"), NOW) == datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
    late = task_context(run_type="scheduled", logical_date=NOW - timedelta(hours=5))
    assert wait_until(late, slot(cutoff="02:30"), NOW) is None
    assert wait_until(late, slot(cutoff="90m"), NOW) is None


def test_a_run_of_a_later_pass_knows_its_night_and_the_passes_before_it() -> None:
    given = Pass("scheduled__2026-11-21T01:00:00+00:00", 3, NOW + timedelta(hours=1))
    context = task_context(build_date="2026-11-21", **{"pass": given.to_json()})
    night, turn = night_of(context, slot(), NOW)
    assert turn == given
    assert night.number == 3
    assert night.earlier == ("night/scheduled__2026-11-21T01:00:00+00:00", "night/night__2026-11-21__0100__pass2")
    assert Night.from_json(night.to_json()) == night
    early = Pass("night__2026-11-22__first", 1, NOW + timedelta(hours=1))
    context = task_context(build_date="2026-11-22", **{"pass": early.to_json()})
    assert night_of(context, slot(), NOW)[0].date == date(2026, 11, 22), "tomorrow is refused to no later pass"


def test_without_an_index_a_run_that_may_not_wait_fails_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BuildSensor, "site", lambda _: plain_site(tmp_path))
    with pytest.raises(AirflowFailException) as failed:
        BuildSensor(task_id="find_build", slot="main").execute(task_context(run_type="backfill", logical_date=NOW))
    assert f"slot main has no build for 2026-11-21: nothing at {tmp_path.as_uri()}/builds" in str(failed.value)
