"""Which date's build a run installs, also on the days on which summer time begins and ends."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from include.nightlies.errors import BUILD_DATE_REFUSED, BuildDateUnknown
from include.nightlies.rules.passes import require_allowed, resolve_build_date
from tests.fakes.refused import refused

ZURICH = "Europe/Zurich"


def resolve(param=None, key=None, logical=None, *, zone=ZURICH, offset=0):
    return resolve_build_date(param, key, logical, timezone=zone, date_offset=offset)


@pytest.mark.parametrize(
    ("param", "key", "day", "says"),
    [
        ("2026-01-02", "2026-03-04", date(2026, 1, 2), "parameter"),
        (None, "2026-03-04", date(2026, 3, 4), "partition key"),
        (" ", "", date(2026, 5, 5), "logical date"),
    ],
)
def test_the_parameter_goes_before_the_partition_key_and_that_before_the_logical_date(param, key, day, says):
    found = resolve(param, key, datetime(2026, 5, 6, 12, tzinfo=UTC), offset=-1)
    assert (found.date, says in found.reason) == (day, True), found.reason


def test_nothing_and_a_logical_date_without_zone_are_refused():
    for logical in (None, datetime(2026, 5, 6)):  # noqa: DTZ001
        with pytest.raises(BuildDateUnknown):
            resolve(logical=logical)


@pytest.mark.parametrize("key", ["2026-03-04", "main/2026-03-04", "2026-03-04T00:00:00", "2026-03-04T02:00:00+01:00"])
def test_a_partition_key_holds_its_date_in_any_usual_form(key):
    assert resolve(key=key).date == date(2026, 3, 4)


def test_a_run_without_a_logical_date_has_the_day_on_which_it_was_started_in_the_slots_zone():
    started = datetime(2026, 11, 25, 23, 30, tzinfo=UTC)  # half past midnight in Zurich
    found = resolve_build_date(None, None, None, timezone=ZURICH, date_offset=0, run_after=started)
    assert (found.date, found.reason) == (date(2026, 11, 26), "run_after 2026-11-26 00:30 in Europe/Zurich")
    before = resolve_build_date(None, None, None, timezone=ZURICH, date_offset=-1, run_after=started)
    assert before.date == date(2026, 11, 25)
    logical = datetime(2026, 5, 6, 12, tzinfo=UTC)
    assert resolve_build_date(None, None, logical, timezone=ZURICH, date_offset=0, run_after=started).date.month == 5


# 02:30 does not exist on the first day and exists twice on the second
@pytest.mark.parametrize(
    ("utc", "local", "day"),
    [
        ("2026-03-28T22:59:59", "23:59", "2026-03-28"),
        ("2026-03-28T23:00:00", "00:00", "2026-03-29"),
        ("2026-03-29T00:30:00", "01:30", "2026-03-29"),
        ("2026-03-29T01:30:00", "03:30", "2026-03-29"),
        ("2026-03-29T21:59:59", "23:59", "2026-03-29"),
        ("2026-03-29T22:00:00", "00:00", "2026-03-30"),
        ("2026-10-24T21:59:59", "23:59", "2026-10-24"),
        ("2026-10-24T22:00:00", "00:00", "2026-10-25"),
        ("2026-10-25T00:30:00", "02:30", "2026-10-25"),
        ("2026-10-25T01:30:00", "02:30", "2026-10-25"),
        ("2026-10-25T22:59:59", "23:59", "2026-10-25"),
        ("2026-10-25T23:00:00", "00:00", "2026-10-26"),
    ],
)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_the_logical_date_counts_in_the_slots_zone(utc, local, day, offset):
    logical = datetime.fromisoformat(utc).replace(tzinfo=UTC)
    found = resolve(logical=logical, offset=offset)
    assert found.date == date.fromisoformat(day) + timedelta(days=offset)
    assert f"{local} in Europe/Zurich" in found.reason


@pytest.mark.parametrize(
    "text", ["21.11.2026", "2026-02-30", "2026-1-1", "today", "2026-W01-1", "20260101", "２０２６-01-01"]
)
def test_what_is_not_a_date_is_refused(text):
    with pytest.raises(BuildDateUnknown):
        resolve(text)
    with pytest.raises(BuildDateUnknown):
        resolve(key=text)


# 23:30 of the 20th in UTC is the 21st in Zurich
LATE = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)


def allowed(param, *, run_type="manual", allow_future=False, offset=0, key=None):
    found = resolve(param, key, LATE, offset=offset)
    require_allowed(
        found, LATE, param=param, run_type=run_type, allow_future=allow_future, timezone=ZURICH, date_offset=offset
    )


@pytest.mark.parametrize(
    ("param", "more", "may"),
    [
        ("2026-11-21", {}, True),
        ("2026-11-22", {}, False),
        ("2026-11-22", {"allow_future": True}, True),
        (None, {"key": "main/2026-11-22"}, False),
        (None, {"key": "main/2026-11-22", "allow_future": True}, True),
        (None, {"offset": 1}, True),
        ("2026-11-22", {"offset": 1}, True),
        ("2026-11-23", {"offset": 1}, False),
        ("2026-11-22", {"offset": -1}, False),
        ("2026-11-22", {"run_type": "scheduled"}, True),  # a clock may be behind
        ("2026-11-19", {"run_type": "backfill"}, False),
        ("2026-11-19", {"run_type": "backfill", "allow_future": True}, False),
        (None, {"run_type": "backfill"}, True),
        (" ", {"run_type": "backfill"}, True),
    ],
)
def test_a_date_later_than_the_slots_today_and_one_for_a_backfill_are_refused(param, more, may):
    if may:
        allowed(param, **more)
    else:
        with refused(BUILD_DATE_REFUSED):
            allowed(param, **more)
