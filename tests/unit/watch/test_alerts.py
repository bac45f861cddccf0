"""What people are told of a night: one message for a cause, at the time when it is one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from include.nightlies.states import State
from include.notify.message import Event, Message
from include.settings.model import Slot
from include.watch.alerts import Runs, Tick, alerts_of, summary_due, ticks
from include.watch.summary import Summary
from tests.unit.watch.test_summary import built, of, published

HOUR = timedelta(hours=1)
AT = datetime(2026, 11, 21, 1, tzinfo=UTC)
SLOT = Slot(
    name="main", repository="r.example.org", store="builds", schedule="0 2 * * *", timezone="Europe/Zurich",
    cutoff="08:00", summary_at="09:00",
)  # fmt: skip
TICK = Tick("main", AT, date(2026, 11, 21), AT + 6 * HOUR)
THERE, AWAY = Runs(there=True, failed=False), Runs(there=False, failed=False)


def told(seen: Summary, runs: Runs, now: datetime) -> list[Message]:
    return list(alerts_of(TICK, seen, runs, now, late=timedelta(minutes=30)))


def test_nights_of_the_schedule_have_their_dates_and_deadlines() -> None:
    found = ticks(SLOT, AT + 2 * HOUR)
    assert found == [TICK]
    assert [one.date.day for one in ticks(SLOT, AT + 2 * HOUR, look_back=27 * HOUR)] == [21, 20]
    assert ticks(SLOT.model_copy(update={"schedule": None}), AT) == []


def test_a_night_that_did_not_start_is_told_after_a_while_and_only_if_nobody_knows_of_it() -> None:
    assert told(of(), AWAY, AT + timedelta(minutes=29)) == []
    (one,) = told(of(), AWAY, AT + timedelta(minutes=30))
    assert (one.event, one.key) == (Event.NOT_STARTED, "not-started:main:2026-11-21")
    assert "paused" in one.cure
    # it waits for its index, in the triggerer: the ledger knows nothing yet, Airflow does
    assert told(of(), THERE, AT + HOUR) == []
    assert told(built_and_published(), AWAY, AT + HOUR) == []


def built_and_published() -> Summary:
    return of(built("A/x86"), b1=[published(100, State.PUBLISHED)])


def test_a_night_that_is_not_whole_at_its_cutoff_is_told_with_what_is_missing() -> None:
    seen = of(built("A/x86", "B/x86"), b1=[published(100, State.PUBLISHED)])
    assert told(seen, THERE, TICK.until - timedelta(seconds=1)) == []
    (one,) = told(seen, THERE, TICK.until)
    assert one.event is Event.DEADLINE
    assert "B/x86: open" in one.text
    assert told(built_and_published(), THERE, TICK.until) == []


def test_failures_are_one_message_a_run() -> None:
    rows = [
        published(100, State.FAILED, "no room", run="night/1"), published(101, State.FAILED, "too big", run="night/1"),
        published(102, State.FAILED, "away", run="night/2"),
    ]  # fmt: skip
    found = told(of(built("A/x86", "B/x86", "C/x86"), b1=rows), Runs(there=True, failed=True), AT + HOUR)
    assert [one.key for one in found] == ["run-failed:night/1", "run-failed:night/2"]
    assert "A/x86: no room" in found[0].text
    assert "B/x86: too big" in found[0].text
    assert found[0].links == {"log": "NIGHT/1"}


def test_a_run_that_failed_without_an_artifact_is_told_too() -> None:
    (one,) = told(of(), Runs(there=True, failed=True), AT + HOUR)
    assert (one.event, one.key) == (Event.RUN_FAILED, "run-failed:main:2026-11-21")


@pytest.mark.parametrize(("later", "due"), [(6.9, False), (7, True), (20, True)])
def test_the_summary_is_due_at_the_slots_hour(later: float, due: bool) -> None:
    assert summary_due(SLOT, TICK, AT + later * HOUR) is due
    assert not summary_due(SLOT.model_copy(update={"summary_at": None}), TICK, AT + later * HOUR)
