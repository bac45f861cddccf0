"""Schedules whose local time a change of the clock leaves out, such as 02:30 when 03:00 follows 02:00."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

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
