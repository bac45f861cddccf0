"""When a night goes on and when it ends, and what its passes are called."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from include.cvmfs.errors import ManifestConflict, SourceError
from include.gateway.errors import (
    BAD_SIGNATURE,
    GATEWAY_FAILED,
    STATE_FAILED,
    CommitUnclear,
    GatewayUnreachable,
    PathBusy,
    ReplyLost,
)
from include.nightlies.rules.passes import (
    AFTER_FAILURE,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Pass,
    SeenBuild,
    Turn,
    by_artifact,
    cutoff,
    dates,
    decide,
    first_pass,
    first_run_id,
    is_outage,
    pauses,
    starts,
    tick_of,
)
from include.publishers.errors import NodeUnreachable
from include.settings.model import SiteSettings
from include.storage.errors import Forbidden, Unavailable
from tests.fakes.plainsite import slot

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
CUTOFF = NOW + timedelta(hours=4)
DAY = date(2026, 11, 21)
GATHER = timedelta(seconds=30)


def test_a_pass_after_one_that_was_not_planned_rests_first_and_crosses_the_parameters_of_a_run() -> None:
    one = Pass("x", 2, CUTOFF)
    assert one.following(planned=True, now=NOW) == Pass("x", 3, CUTOFF)
    assert one.following(planned=False, now=NOW).after == NOW + AFTER_FAILURE
    for turn in (Pass("x"), one, Pass("x", 4, CUTOFF, NOW)):
        assert Pass.from_json(turn.to_json()) == turn


NEW = SeenBuild(listed=3, fresh=3)


@pytest.mark.parametrize(
    ("seen", "more", "turn"),
    [
        (SeenBuild(complete=True, listed=8, settled=5, fresh=3), {}, Turn.LAST),
        (SeenBuild(problem="no index"), {"now": CUTOFF}, Turn.LAST),
        (NEW, {"now": CUTOFF, "fresh_since": CUTOFF}, Turn.LAST),
        (NEW, {"fresh_since": NOW}, Turn.WAIT),
        (NEW, {"now": NOW + GATHER, "fresh_since": NOW}, Turn.GO),
        (NEW, {"now": NOW + GATHER, "fresh_since": NOW, "gather": None}, Turn.WAIT),
        (NEW, {"until": None}, Turn.LAST),
        (SeenBuild(problem="is not JSON", complete=True), {"fresh_since": NOW - GATHER}, Turn.WAIT),
    ],
    ids=["complete", "cut-off without index", "cut-off", "gathers", "goes in", "of a single pass", "waits for nothing",
         "unusable index"],
)  # fmt: skip
def test_a_night_goes_on_waits_or_ends(seen: SeenBuild, more: dict[str, Any], turn: Turn) -> None:
    found = decide(seen, **{"now": NOW, "until": CUTOFF, "fresh_since": None, "gather": GATHER, **more})
    assert (found.turn, (seen.problem or "") in found.reason) == (turn, True), found


def test_a_night_says_what_it_has_and_what_it_waits_for() -> None:
    given: Any = {"now": NOW, "until": CUTOFF, "fresh_since": None, "gather": GATHER}
    complete = SeenBuild(complete=True, listed=8, settled=5, fresh=3)
    assert decide(complete, **given).reason == "the index is complete: 8 listed, 5 of them settled, 3 new"
    assert decide(SeenBuild(listed=5, settled=3, failed=1, elsewhere=1), **given).reason == (
        "the index is not complete; more is waited for until 2026-11-21 06:00+00:00: "
        "5 listed, 3 of them settled, 1 failed so far, 1 in another run"
    )


@pytest.mark.parametrize(
    ("text", "tick", "ends"),
    [
        ("06:00", datetime(2026, 11, 21, 1, 0, tzinfo=UTC), datetime(2026, 11, 21, 5, 0, tzinfo=UTC)),
        ("06:00", datetime(2026, 11, 20, 21, 0, tzinfo=UTC), datetime(2026, 11, 21, 5, 0, tzinfo=UTC)),
        ("02:00", datetime(2026, 11, 21, 1, 0, tzinfo=UTC), datetime(2026, 11, 22, 1, 0, tzinfo=UTC)),
        ("06:00", datetime(2026, 3, 28, 21, 0, tzinfo=UTC), datetime(2026, 3, 29, 4, 0, tzinfo=UTC)),
        ("5h", datetime(2026, 3, 28, 21, 0, tzinfo=UTC), datetime(2026, 3, 29, 2, 0, tzinfo=UTC)),
        ("90m", datetime(2026, 11, 21, 1, 0, tzinfo=UTC), datetime(2026, 11, 21, 2, 30, tzinfo=UTC)),
        # 02:30 comes twice, and the schedule's is the second one: 02:45 is a quarter of an hour later
        ("02:45", datetime(2026, 10, 25, 1, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 45, tzinfo=UTC)),
        ("02:45", datetime(2026, 10, 24, 23, 0, tzinfo=UTC), datetime(2026, 10, 25, 0, 45, tzinfo=UTC)),
        ("02:10", datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 10, tzinfo=UTC)),
        # there is no 02:30: it is 03:30 then
        ("02:30", datetime(2026, 3, 29, 0, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
        ("02:30", datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC)),
    ],
    ids=[
        "same day",
        "over midnight",
        "a whole day",
        "summer time begins",
        "hours",
        "minutes",
        "the second of two",
        "the first of two",
        "between two",
        "one that is not",
        "after one that is not",
    ],
)
def test_a_night_ends_at_the_next_such_time_after_its_schedule(text: str, tick: datetime, ends: datetime) -> None:
    assert cutoff(text, tick, timezone="Europe/Zurich") == ends


@given(
    st.integers(0, 366 * 24 * 60).map(lambda minutes: NOW + timedelta(minutes=minutes)),
    st.times().map(lambda one: f"{one:%H:%M}"),
)
def test_a_night_with_a_time_of_day_ends_after_it_began_and_within_a_day(tick: datetime, text: str) -> None:
    ends = cutoff(text, tick, timezone="Europe/Zurich")
    assert timedelta() < ends - tick <= timedelta(hours=25)


@pytest.mark.parametrize(
    ("first", "third"),
    [
        ("scheduled__2026-11-21T01:00:00+00:00", "night__2026-11-21__0100__pass3"),
        ("scheduled__2026-11-21T13:30:00+00:00", "night__2026-11-21__1330__pass3"),
        ("night__2026-11-21__1", "night__2026-11-21__1__pass3"),
        ("manual__2026-11-21T10:00:00+00:00_a1", "night__2026-11-21__manual__2026-11-21T10:00:00+00:00_a1__pass3"),
        ("backfill__2026-11-21T01:00:00+00:00", "night__2026-11-21__backfill__2026-11-21T01:00:00+00:00__pass3"),
    ],
)
def test_the_runs_of_a_night_are_named_after_its_date_and_keep_what_began_it(first: str, third: str) -> None:
    one = Pass(first, 3)
    assert one.run_id(DAY) == third
    assert one.earlier(DAY) == (first, third.replace("pass3", "pass2"))
    assert Pass(first).run_id(DAY) == first


TICK = datetime(2026, 11, 21, 1, tzinfo=UTC)
EVENING = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)


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


def test_a_night_that_begins_early_ends_by_its_schedule_or_its_length() -> None:
    turn = first_pass(EITHER, DAY, EVENING)
    assert (turn.first, turn.number) == (first_run_id(DAY), 1)
    assert turn.until == datetime(2026, 11, 21, 5, tzinfo=UTC)
    assert turn.following(planned=True, now=EVENING).run_id(DAY) == "night__2026-11-21__first__pass2"
    alone = slot(begins="artifact", cutoff="5h")
    assert first_pass(alone, DAY, EVENING).until == EVENING + timedelta(hours=5)
    assert [by_artifact(one) for one in (slot(schedule="0 2 * * *"), EITHER, alone)] == [False, True, True]


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


def test_by_default_an_outage_of_half_an_hour_is_waited_out_with_pauses_that_grow() -> None:
    planned = pauses(SiteSettings().outage_minutes * 60)
    assert sum(planned) >= 30 * 60
    assert planned[0] == FIRST_PAUSE_S
    assert all(later in (2 * earlier, LONGEST_PAUSE_S) for earlier, later in pairwise(planned))
    assert max(planned) == LONGEST_PAUSE_S


@pytest.mark.parametrize("minutes", [0, 1, 30, 720])
def test_the_pauses_fill_the_budget_and_no_pause_begins_after_it(minutes: int) -> None:
    planned = pauses(minutes * 60)
    assert sum(planned) >= minutes * 60
    assert sum(planned[:-1]) < max(minutes * 60, 1)


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (Unavailable("503", key="a", cause="503"), True),
        (GatewayUnreachable("no connection"), True),
        (ReplyLost("no reply"), True),
        (GATEWAY_FAILED("500"), True),
        (STATE_FAILED("database is locked"), True),
        (NodeUnreachable("nights.example.org", "no route"), True),
        (CommitUnclear("no reply"), False),
        (PathBusy("busy"), False),
        (BAD_SIGNATURE("no"), False),
        (Forbidden("no", key="a"), False),
        (ManifestConflict("nights.example.org"), False),
        (SourceError("a", "b"), False),
        (RuntimeError("unknown"), False),
    ],
)
def test_only_what_cannot_be_reached_is_an_outage(error: Exception, outage: bool) -> None:
    assert is_outage(error) is outage
    assert not outage or getattr(error, "retryable", False), "what is waited for may pass by itself"
