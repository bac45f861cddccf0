"""The time of the checks before a night, and schedules that a change of clocks leaves out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from include.settings.model import Slot

_AHEAD = timedelta(days=366)
_STEP = timedelta(minutes=30)  # clocks change at full and half hours


def left_out(schedule: str, timezone: str, now: datetime) -> datetime | None:
    """The first local time within a year at which a run is due and that does not exist; None if there is none."""
    from croniter import croniter  # type: ignore[import-untyped]

    zone = ZoneInfo(timezone)
    moment = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    end, before = moment + _AHEAD, _offset(moment, zone)
    while moment < end:
        moment += _STEP
        after = _offset(moment, zone)
        if after > before:
            first = (moment + before).replace(tzinfo=None)
            due: datetime = croniter(schedule, first - timedelta(seconds=1)).get_next(datetime)
            if due < first + (after - before):
                return due
        before = after
    return None


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


FALLBACK = ("0 22 * * *", "UTC")
"""For slots whose schedules name no hour."""


def hour_before_first(slots: Iterable[Slot]) -> tuple[str, str] | None:
    """A cron expression and its time zone; None if no slot has a schedule.

    Days of the schedule do not count: looking is cheap, and a night by hand is as glad of it.
    """
    scheduled = [(slot.schedule, slot.timezone) for slot in slots if slot.schedule]
    if not scheduled:
        return None
    times = []
    for schedule, zone in scheduled:
        minute, hour = schedule.split()[:2]
        if minute.isdigit() and hour.isdigit():
            # a night begins in the evening or after midnight: noon divides one from the next
            times.append(((int(hour) - 12) % 24, int(minute), int(hour), zone))
    if not times:
        return FALLBACK
    _, minute_of_hour, hour_of_day, zone = min(times)
    return f"{minute_of_hour} {(hour_of_day - 1) % 24} * * *", zone
