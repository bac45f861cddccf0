"""How a slot's night begins with its first artifact instead of by its schedule, or with whichever comes first. Pure.

Why it is done in this way: docs/decisions/0020-events-of-an-index.md.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from include.nightlies.rules.build_date import resolve_build_date
from include.nightlies.rules.passes import Pass, cutoff
from include.settings.model import Begins, Slot

FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
"""That of slots that name none."""
ELSEWHERE = "elsewhere"
"""Under this key a run that leaves its night to another one hands on to which."""


def by_artifact(slot: Slot) -> bool:
    """Whether its nights may begin with their first artifact."""
    return slot.begins is not Begins.SCHEDULE


def starts(slot: Slot) -> datetime:
    """The beginning of the slot's first day, in UTC: the start date of its DAG."""
    if slot.start is None:
        return FIRST_DAY
    return datetime.combine(slot.start, datetime.min.time(), ZoneInfo(slot.timezone)).astimezone(UTC)


def first_run_id(day: date) -> str:
    """The id of the run that the first artifact of a date begins; the same for all that see it, and however often."""
    return f"night__{day.isoformat()}__first"


def dates(slot: Slot, now: datetime) -> tuple[date, ...]:
    """The build dates whose first artifact may come now: this day's and the next one's, in the slot's time zone."""
    today = now.astimezone(ZoneInfo(slot.timezone)).date() + timedelta(days=slot.date_offset)
    return today, today + timedelta(days=1)


def tick_of(slot: Slot, day: date) -> datetime | None:
    """When the slot's schedule begins the night of a build date, in UTC; None if it does not."""
    if not slot.schedule:
        return None
    from croniter import croniter  # type: ignore[import-untyped]

    zone = ZoneInfo(slot.timezone)
    start = datetime.combine(day - timedelta(days=slot.date_offset), datetime.min.time(), zone)
    tick: datetime = croniter(slot.schedule, start - timedelta(seconds=1)).get_next(datetime)
    found = resolve_build_date(None, None, tick, timezone=slot.timezone, date_offset=slot.date_offset).date
    return tick.astimezone(UTC) if found == day else None


def first_pass(slot: Slot, day: date, now: datetime) -> Pass:
    """The first pass of a night that an artifact begins. It ends when it would have ended by its schedule, if any."""
    until = cutoff(slot.cutoff, tick_of(slot, day) or now, timezone=slot.timezone)
    return Pass(first_run_id(day), 1, until)
