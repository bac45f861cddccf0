"""The date whose build a run installs: parameter, else partition key, else the logical date in the slot's zone.

A run that a program starts without a logical date has that of its `run_after`, which is when it was started: a retry on
the next day installs the same build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from include.nightlies.errors import BUILD_DATE_REFUSED, BuildDateUnknown

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class BuildDate:
    """A build date and where it came from."""

    date: date
    reason: str

    def __str__(self) -> str:
        return self.date.isoformat()


def resolve_build_date(
    param: str | date | None,
    partition_key: str | None,
    logical_date: datetime | None,
    *,
    timezone: str,
    date_offset: int,
    run_after: datetime | None = None,
) -> BuildDate:
    """The build date of a run and its reason; raises BuildDateUnknown.

    `date_offset` (days) is added to the day of the logical date, or of `run_after`, in `timezone`, and to nothing else:
    parameter and partition key (`YYYY-MM-DD`, or `<slot>/YYYY-MM-DD`) already are build dates.
    """
    if isinstance(param, datetime):
        raise BuildDateUnknown(f"the parameter {param.isoformat()} is an instant, not a date")
    if isinstance(param, date):
        return BuildDate(param, f"the parameter {param.isoformat()}")
    if param is not None and param.strip():
        return BuildDate(_parse(param.strip(), "the parameter"), f"the parameter {param.strip()}")
    if partition_key is not None and partition_key.strip():
        key = partition_key.strip()
        return BuildDate(_parse(_dated_part(key), "the partition key"), f"the partition key {key}")
    moment, origin = (run_after, "run_after") if logical_date is None else (logical_date, "the logical date")
    if moment is None:
        raise BuildDateUnknown(
            "the run has no build date: no parameter, no partition key, no logical date and no run_after"
        )
    if moment.tzinfo is None:
        raise BuildDateUnknown(f"{origin} {moment.isoformat()} has no time zone")
    local = moment.astimezone(ZoneInfo(timezone))
    try:
        day = local.date() + timedelta(days=date_offset)
    except OverflowError:
        raise BuildDateUnknown(f"{local.date()} {date_offset:+d} days is no date") from None
    offset = f" {date_offset:+d} d" if date_offset else ""
    return BuildDate(day, f"{origin} {local:%Y-%m-%d %H:%M} in {timezone}{offset}")


def today(timezone: str, now: datetime) -> date:
    """The build date of a run that is started by hand now, in a slot's time zone."""
    return now.astimezone(ZoneInfo(timezone)).date()


def require_allowed(
    found: BuildDate,
    now: datetime,
    *,
    param: str | date | None,
    run_type: str,
    allow_future: bool,
    timezone: str,
    date_offset: int,
) -> None:
    """Raise NightlyError for a date that is hardly meant.

    One date for every run of a backfill is refused, and a date later than today's unless ``allow_future``: links move
    forward only, so no earlier build takes `latest` back. Scheduled runs have the date of their schedule.
    """
    if run_type == "backfill" and param is not None and str(param).strip():
        raise BUILD_DATE_REFUSED(
            f"the parameter build_date {param} is given in a backfill: every one of its runs would install that date. "
            "Leave it empty: each run of a backfill installs the build of its own date."
        )
    latest = today(timezone, now)
    if allow_future or run_type == "scheduled" or found.date <= latest + timedelta(days=max(0, date_offset)):
        return
    raise BUILD_DATE_REFUSED(
        f"build date {found.date} ({found.reason}) is later than today, {latest} in {timezone}. Correct the date; or "
        "turn on *Allow a future date* (allow_future): then `latest` points to that build until a later one is in."
    )


def _dated_part(key: str) -> str:
    last = key.rpartition("/")[2]
    # the default key of Airflow's partition timetables is an instant of the slot's own zone
    return last[:10] if re.fullmatch(r"[0-9-]{10}[T ][0-9:]+(Z|[+-][0-9:]+)?", last) else last


def _parse(text: str, origin: str) -> date:
    if _DATE.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise BuildDateUnknown(f"{origin} {text!r} is not a date")
