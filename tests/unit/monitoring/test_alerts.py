"""What people are told of a night: one message for a cause, at the time when it is one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from include.monitoring import alerts
from include.monitoring.summary import Summary
from include.nightlies.rules.publication import State
from include.notify import Message, NotifyEvent
from include.settings.model import Begins, Slot
from tests.fakes.summaries import built, of, published

HOUR = timedelta(hours=1)
AT = datetime(2026, 11, 21, 1, tzinfo=UTC)
SLOT = Slot(
    name="main", repository="r.example.org", store="builds", schedule="0 2 * * *", timezone="Europe/Zurich",
    cutoff="08:00", summary_at="09:00",
)  # fmt: skip
TICK = alerts.Tick("main", AT, date(2026, 11, 21), AT + 6 * HOUR)
THERE, AWAY, QUEUED = alerts.Runs(there=True), alerts.Runs(there=False), alerts.Runs(there=True, waiting=True)


def told(seen: Summary, runs: alerts.Runs, now: datetime) -> list[Message]:
    return list(alerts.alerts_of(TICK, seen, runs, now, late=timedelta(minutes=30)))


def test_nights_of_the_schedule_have_their_dates_deadlines_and_hours_of_the_summary() -> None:
    for later, due in ((6.9, False), (7, True), (20, True)):
        assert alerts.summary_due(SLOT, TICK, AT + later * HOUR) is due
        assert not alerts.summary_due(SLOT.model_copy(update={"summary_at": None}), TICK, AT + later * HOUR)
    assert alerts.ticks(SLOT, AT + 2 * HOUR) == [TICK]
    assert [one.date.day for one in alerts.ticks(SLOT, AT + 2 * HOUR, look_back=27 * HOUR)] == [21, 20]
    assert alerts.ticks(SLOT.model_copy(update={"schedule": None}), AT) == []


def test_a_night_that_did_not_start_is_told_after_a_while_and_only_if_nobody_knows_of_it() -> None:
    assert told(of(), AWAY, AT + timedelta(minutes=29)) == []
    (one,) = told(of(), AWAY, AT + timedelta(minutes=30))
    assert (one.event, one.key) == (NotifyEvent.NOT_STARTED, "not-started:main:2026-11-21")
    assert "paused" in one.cure
    (queued,) = told(of(), QUEUED, AT + HOUR)
    assert queued.event is NotifyEvent.NOT_STARTED
    assert "it is queued, and none of its tasks has begun" in queued.text
    # it waits for its index, in the triggerer: the ledger knows nothing yet, Airflow does
    assert told(of(), THERE, AT + HOUR) == []
    assert told(built_and_published(), AWAY, AT + HOUR) == []


def built_and_published() -> Summary:
    return of(built("A/x86"), b1=[published(100, State.PUBLISHED)])


def test_a_night_that_is_not_whole_at_its_cutoff_is_told_with_what_is_missing() -> None:
    seen = of(built("A/x86", "B/x86"), b1=[published(100, State.PUBLISHED)])
    assert told(seen, THERE, TICK.until - timedelta(seconds=1)) == []
    (one,) = told(seen, THERE, TICK.until)
    assert one.event is NotifyEvent.DEADLINE
    assert "B/x86: open" in one.text
    assert told(built_and_published(), THERE, TICK.until) == []


def test_a_run_that_failed_without_an_artifact_is_told_and_one_whose_artifacts_are_told_is_not() -> None:
    failed = alerts.Runs(there=True, failed=("scheduled__x", "night__2026-11-21__pass2"))
    seen = of(
        built("A/x86"),
        b1=[published(100, State.FAILED, "no room", run="nightly_install_main/night__2026-11-21__pass2")],
    )
    (one,) = told(seen, failed, AT + HOUR)
    assert (one.event, one.key) == (NotifyEvent.RUN_FAILED, "run-failed:nightly_install_main/scheduled__x")
    assert "A/x86: failed: no room" in one.text
    # after the cut-off what is missing is one cause, whatever failed because of it
    assert [one.event for one in told(seen, failed, TICK.until)] == [NotifyEvent.DEADLINE]


def test_a_try_that_failed_is_told_when_none_follows_it() -> None:
    (line,) = of(built("A/x86"), b1=[published(100, State.FAILED, "no room", ended_at=AT)]).lines
    assert alerts.has_left(line, True, AT)
    for unknown in (False, None):
        assert not alerts.has_left(line, unknown, AT + alerts.RETRIED_WITHIN - timedelta(seconds=1))
        assert alerts.has_left(line, unknown, AT + alerts.RETRIED_WITHIN)


def test_a_night_that_its_first_artifact_began_is_watched_like_one_of_the_schedule() -> None:
    slot = SLOT.model_copy(update={"begins": Begins.EITHER})
    known = alerts.ticks(slot, AT + 2 * HOUR)
    tomorrow = date(2026, 11, 22)
    (early,) = alerts.begun_by_artifact(slot, {date(2026, 11, 21): AT, tomorrow: AT + 21 * HOUR}, known)
    # it ends when it would have ended by its schedule
    assert (early.date, early.until) == (tomorrow, datetime(2026, 11, 22, 7, tzinfo=UTC))
    bare = slot.model_copy(update={"schedule": None, "cutoff": "5h", "begins": Begins.ARTIFACT})
    assert alerts.begun_by_artifact(bare, {tomorrow: AT}, ()) == [alerts.Tick("main", AT, tomorrow, AT + 5 * HOUR)]
    assert early.first_runs[1] == "night__2026-11-22__first"
