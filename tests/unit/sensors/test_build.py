"""Which night a run is for, and how long it waits for the build."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from include.nightlies.errors import BUILD_DATE_REFUSED
from include.nightlies.rules.passes import Pass
from include.nightlies.steps.values import Night
from include.settings.model import Slot
from sensors.build import night_of as night_and_pass
from sensors.build import wait_until
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def night_of(context: Any, settings: Slot) -> Night:
    return night_and_pass(context, settings, NOW)[0]


def slot(**changes: object) -> Slot:
    return Slot.model_validate(
        {"name": "main", "repository": "r.example.org", "store": "b", "timezone": "Europe/Zurich", **changes}
    )


def test_the_parameter_goes_before_the_partition_key_and_that_before_the_logical_date() -> None:
    everything = {"partition_key": "2026-11-02", "logical_date": NOW}
    assert night_of(task_context(build_date="2026-11-01", **everything), slot()).date == date(2026, 11, 1)
    assert night_of(task_context(**everything), slot()).date == date(2026, 11, 2)
    assert night_of(task_context(logical_date=NOW), slot()).date == date(2026, 11, 21)


def test_the_logical_date_counts_in_the_zone_of_the_slot_with_its_offset() -> None:
    late = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    assert night_of(task_context(logical_date=late), slot()).date == date(2026, 11, 21)
    assert night_of(task_context(logical_date=late), slot(date_offset=-1)).date == date(2026, 11, 20)


def test_a_night_carries_the_choice_of_the_form() -> None:
    night = night_of(task_context(build_date="2026-11-01", projects=["A"], platforms=None, dry_run=True), slot())
    assert (night.run, night.projects, night.platforms, night.dry_run) == ("night/run-1", ("A",), (), True)


def test_a_run_by_hand_or_of_a_backfill_does_not_wait_unless_told_to() -> None:
    assert wait_until(task_context(), slot(), NOW) is None
    assert wait_until(task_context(run_type="backfill"), slot(), NOW) is None
    assert wait_until(task_context(wait_minutes=5), slot(), NOW) == NOW + timedelta(minutes=5)
    assert wait_until(task_context(run_type="scheduled", wait_minutes=0), slot(), NOW) is None


def test_a_scheduled_run_waits_until_the_cutoff_of_its_slot() -> None:
    scheduled = task_context(run_type="scheduled", logical_date=NOW - timedelta(minutes=1))
    assert wait_until(scheduled, slot(), NOW) == NOW + timedelta(hours=5, minutes=59)
    # six in the morning in Zurich is five in UTC in November
    assert wait_until(scheduled, slot(cutoff="06:00"), NOW) == datetime(2026, 11, 21, 5, 0, tzinfo=UTC)


def test_a_run_of_a_night_that_is_over_waits_for_nothing() -> None:
    late = task_context(run_type="scheduled", logical_date=NOW - timedelta(hours=5))
    assert wait_until(late, slot(cutoff="02:30"), NOW) is None
    assert wait_until(late, slot(cutoff="90m"), NOW) is None


def test_a_run_of_a_later_pass_knows_its_night_and_the_passes_before_it() -> None:
    given = Pass("scheduled__2026-11-21T01:00:00+00:00", 3, NOW + timedelta(hours=1))
    context = task_context(build_date="2026-11-21", **{"pass": given.to_json()})
    night, turn = night_and_pass(context, slot(), NOW)
    assert turn == given
    assert night.number == 3
    assert night.earlier == ("night/scheduled__2026-11-21T01:00:00+00:00", "night/night__2026-11-21__0100__pass2")
    assert Night.from_json(night.to_json()) == night
    early = Pass("night__2026-11-22__first", 1, NOW + timedelta(hours=1))
    context = task_context(build_date="2026-11-22", **{"pass": early.to_json()})
    assert night_of(context, slot()).date == date(2026, 11, 22), "a date of tomorrow is refused to no later pass"


def test_the_runs_of_a_backfill_and_of_the_future_are_refused_by_what_the_form_says() -> None:
    tomorrow, run = {"build_date": "2026-11-22"}, {"logical_date": NOW}
    for given in ({"build_date": "2026-11-19", "run_type": "backfill", **run}, tomorrow):
        with refused(BUILD_DATE_REFUSED):
            night_of(task_context(**given), slot())
    assert night_of(task_context(**tomorrow, allow_future=True), slot()).date == date(2026, 11, 22)
    assert night_of(task_context(run_type="backfill", **run), slot()).date == date(2026, 11, 21)
