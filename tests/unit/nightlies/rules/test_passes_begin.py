"""What a night begins with, for which date, and when it then ends."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from pydantic import ValidationError

from include.nightlies.rules.passes import by_artifact, dates, first_pass, first_run_id, starts, tick_of
from include.settings.model import Slot

DAY = date(2026, 11, 21)
TICK = datetime(2026, 11, 21, 1, tzinfo=UTC)
EVENING = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)


def slot(**changes: object) -> Slot:
    given = {"name": "main", "repository": "r.example.org", "store": "b", "timezone": "Europe/Zurich", **changes}
    return Slot.model_validate(given)


EITHER = slot(begins="either", schedule="0 2 * * *", cutoff="06:00")


def test_the_first_day_of_a_slot_begins_in_its_own_zone() -> None:
    assert starts(slot()) == datetime(2026, 1, 1, tzinfo=UTC)
    assert starts(slot(start="2021-07-01")) == datetime(2021, 6, 30, 22, tzinfo=UTC)
    with pytest.raises(ValidationError):
        slot(start="in spring")


def test_the_dates_that_may_begin_now_are_those_of_the_slots_own_day_and_the_next() -> None:
    late = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    assert dates(EITHER, late) == (DAY, date(2026, 11, 22))
    assert dates(slot(date_offset=-1), late) == (date(2026, 11, 20), DAY)


@pytest.mark.parametrize(
    ("schedule", "offset", "tick"),
    [
        ("0 2 * * *", 0, TICK),
        ("0 22 * * *", 1, datetime(2026, 11, 20, 21, tzinfo=UTC)),
        ("0 0 * * *", 0, datetime(2026, 11, 20, 23, tzinfo=UTC)),
        ("0 2 * * 1", 0, None),
        (None, 0, None),
    ],
)
def test_the_schedule_has_one_time_for_a_date_or_none(schedule: str | None, offset: int, tick: datetime | None) -> None:
    assert tick_of(slot(schedule=schedule, date_offset=offset), DAY) == tick


def test_a_night_that_begins_early_ends_when_its_schedule_would_have_ended_it() -> None:
    turn = first_pass(EITHER, DAY, EVENING)
    assert (turn.first, turn.number) == (first_run_id(DAY), 1)
    assert turn.until == datetime(2026, 11, 21, 5, tzinfo=UTC)
    assert turn.following(planned=True, now=EVENING).run_id(DAY) == "night__2026-11-21__first__pass2"


def test_a_night_without_a_schedule_is_as_long_as_its_cutoff_says_from_its_beginning_on() -> None:
    turn = first_pass(slot(begins="artifact", cutoff="5h"), DAY, EVENING)
    assert turn.until == EVENING + timedelta(hours=5)


def test_what_begins_it_is_the_slots_to_say() -> None:
    assert not by_artifact(slot(schedule="0 2 * * *"))
    assert by_artifact(EITHER)
    assert by_artifact(slot(begins="artifact"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"begins": "artifact", "schedule": "0 2 * * *"}, "Set `begins: either`"),
        ({"begins": "either"}, "Add `schedule`"),
    ],
)
def test_a_beginning_that_cannot_be_is_refused_with_the_cure(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        slot(**given)
    (error,) = refused.value.errors()
    assert says in str(error.get("ctx", {}).get("cure", error["msg"]))
