"""Build dates of runs, and the passes of a night over an index that still grows: begin, outages, end. Pure.

A run has the build date of its parameter, else of its partition key, else of the logical date in the zone of the slot.
A run that a program starts without a logical date has that of its `run_after`, which is when it was started: a retry on
the next day installs the same build. Each pass is a run of the DAG of the slot; the reasons are in
docs/decisions/0016-dag-run-per-pass-of-a-night.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from zoneinfo import ZoneInfo

from include.errors import NightshiftError
from include.json_values import JsonValue, Time
from include.nightlies.errors import BUILD_DATE_REFUSED, BuildDateUnknown
from include.settings.model import Begins, Slot

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


FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


def is_outage(error: BaseException) -> bool:
    """Tell whether an error means that a service cannot be reached, so that only waiting helps."""
    return isinstance(error, NightshiftError) and error.outage


def pauses(budget_s: float) -> tuple[float, ...]:
    """Seconds between the checks of a service that is away: each twice the one before, together at least the budget."""
    planned: list[float] = []
    pause_s = FIRST_PAUSE_S
    while sum(planned) < budget_s:
        planned.append(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    return tuple(planned)


FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
"""That of slots that name none."""
ELSEWHERE = "elsewhere"
"""Under this key a run that leaves its night to another one hands on to which."""


def by_artifact(slot: Slot) -> bool:
    """Tell whether its nights may begin with their first artifact."""
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


AFTER_FAILURE = timedelta(minutes=5)
"""Time that a night rests after a pass that could not even be planned."""
_SCHEDULED = re.compile(r"scheduled__[\d-]{10}T(\d\d):(\d\d):[\d.]+\+00:00")
"""The id that Airflow gives to a run of a schedule."""

_BY_ITSELF = re.compile(r"(scheduled__|asset_triggered__|night__(?!.*(manual|backfill)__)).*")
"""Ids of runs that a schedule, an asset or the pass before began; Airflow names those of persons otherwise."""


def began_by_itself(run: str) -> bool:
    """Tell whether a run (`<dag>/<run id>`, as records name it) was neither a backfill nor begun by a person."""
    return _BY_ITSELF.fullmatch(run.partition("/")[2]) is not None


class Turn(Enum):
    """Next step of a night."""

    WAIT = "wait"
    GO = "go"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Pass(JsonValue):
    """Run of a night: its `number` from 1 on, and the id of the run that began the night.

    `until`: when the night ends, whatever the index lists; None: at once. `after`: when this pass begins to look, where
    the one before could not be planned.
    """

    first: str
    number: int = 1
    until: Time | None = None
    after: Time | None = None

    def run_id(self, build_date: date, number: int | None = None) -> str:
        """The id of the run of this pass, or of another of the same night; the same for all that ask."""
        number = number or self.number
        if number == 1:
            return self.first
        night = f"night__{build_date.isoformat()}"
        if scheduled := _SCHEDULED.fullmatch(self.first):
            # a schedule may have several times of a day, each of which begins a night
            return f"{night}__{''.join(scheduled.groups())}__pass{number}"
        if self.first.startswith(f"{night}__"):
            return f"{self.first}__pass{number}"
        return f"{night}__{self.first}__pass{number}"

    def earlier(self, build_date: date) -> tuple[str, ...]:
        """The ids of the runs of the passes before this one."""
        return tuple(self.run_id(build_date, number) for number in range(1, self.number))

    def following(self, *, planned: bool, now: datetime) -> Pass:
        """The pass after this one; it rests first if this one was not even `planned`."""
        return Pass(self.first, self.number + 1, self.until, None if planned else now + AFTER_FAILURE)


@dataclass(frozen=True, slots=True)
class SeenBuild:
    """Content of a build's index and the ledger. Counts are of artifacts that the slot takes.

    `problem`: why the index cannot be used at the moment; then the others mean nothing.
    """

    complete: bool = False
    listed: int = 0
    settled: int = 0
    failed: int = 0
    elsewhere: int = 0
    fresh: int = 0
    held: int = 0
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """In words."""
        if self.problem:
            return self.problem
        parts = [f"{self.listed} listed, {self.settled} of them settled"]
        counts = {
            "new": self.fresh,
            "failed so far": self.failed,
            "in another run": self.elsewhere,
            "held back by what they depend on": self.held,
        }
        parts += [f"{count} {words}" for words, count in counts.items() if count]
        return "; ".join([", ".join(parts), *self.notes])


@dataclass(frozen=True, slots=True)
class PassDecision:
    """Next step of the night, and its reason."""

    turn: Turn
    reason: str


def decide(
    seen: SeenBuild, *, now: datetime, until: datetime | None, fresh_since: datetime | None, gather: timedelta | None
) -> PassDecision:
    """Return what to do after a look. `fresh_since`: when an artifact was first seen that no pass has taken yet.

    `gather`: how long it waits for others to come with it, since each pass costs some seconds of its own; None: until
    the night ends, for a night of a single pass.

    A last pass takes all that is listed, also what failed before, and only after it links move.
    """
    if until is None:
        return PassDecision(Turn.LAST, f"this run waits for nothing: {seen.summary}")
    if now >= until:
        return PassDecision(Turn.LAST, f"the night ends at its cut-off, {_minute(until)}: {seen.summary}")
    if seen.problem:
        return PassDecision(Turn.WAIT, f"{seen.problem} (checked again until {_minute(until)})")
    if seen.complete:
        return PassDecision(Turn.LAST, f"the index is complete: {seen.summary}")
    if seen.fresh and fresh_since is not None and gather is not None and now - fresh_since >= gather:
        return PassDecision(Turn.GO, f"there is something to publish: {seen.summary}")
    return PassDecision(
        Turn.WAIT, f"the index is not complete; more is waited for until {_minute(until)}: {seen.summary}"
    )


def cutoff(text: str, tick: datetime, *, timezone: str) -> datetime:
    """When the night that began at `tick` ends, in UTC: after a length of time (`5h`, `90m`), or at a time of day
    (`06:00`) in the zone, the next after the tick."""
    if text[-1] in "hm":
        return (tick + timedelta(**{{"h": "hours", "m": "minutes"}[text[-1]]: int(text[:-1])})).astimezone(UTC)
    zone, at = ZoneInfo(timezone), time.fromisoformat(text)
    today = tick.astimezone(zone).date()
    found = [_at(day, at, zone, fold) for day in (today, today + timedelta(days=1)) for fold in (0, 1)]
    return min(moment for moment in found if moment > tick)


def _at(day: date, at: time, zone: ZoneInfo, fold: int) -> datetime:
    """A time of day in a zone, in UTC. Where the clock is set back it comes twice: `fold` 1 is the second time.

    Where the clock is set forward over it, it is as long after the change as it would be without one.
    """
    first, second = (datetime.combine(day, at.replace(fold=which), zone).astimezone(UTC) for which in (0, 1))
    return max(first, second) if fold else first


def _minute(instant: datetime) -> str:
    return instant.isoformat(" ", "minutes")
