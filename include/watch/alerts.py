"""What people have to be told of a slot's night, from its schedule and its summary. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from include.nightlies.builddate import resolve_build_date
from include.nightlies.passes import cutoff
from include.notify.message import Event, Message
from include.settings.model import Slot
from include.watch.summary import Fate, Summary

LOOK_BACK = timedelta(hours=24)
"""How old a night may be that is still watched."""
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Tick:
    """One time of a slot's schedule: when its night begins, which build it installs, and when it ends."""

    slot: str
    at: datetime
    date: date
    until: datetime

    @property
    def dag_id(self) -> str:
        return f"nightly_install_{self.slot}"


@dataclass(frozen=True, slots=True)
class Runs:
    """What Airflow says of the run of a tick; None where it cannot be asked."""

    there: bool | None = None
    failed: bool | None = None


def ticks(slot: Slot, now: datetime, look_back: timedelta = LOOK_BACK) -> list[Tick]:
    """When the slot's nights were to begin lately, the newest first."""
    if not slot.schedule:
        return []
    from croniter import croniter  # type: ignore[import-untyped]

    past = croniter(slot.schedule, now.astimezone(ZoneInfo(slot.timezone)))
    found = []
    while (at := past.get_prev(datetime)) > now - look_back:
        build = resolve_build_date(None, None, at, timezone=slot.timezone, date_offset=slot.date_offset)
        found.append(
            Tick(slot.name, at.astimezone(now.tzinfo), build.date, cutoff(slot.cutoff, at, timezone=slot.timezone))
        )
    return found


def summary_due(slot: Slot, tick: Tick, now: datetime) -> bool:
    """Whether it is past the slot's hour for the summary of a night; that hour follows the night's beginning."""
    return slot.summary_at is not None and now >= cutoff(slot.summary_at, tick.at, timezone=slot.timezone)


def alerts_of(tick: Tick, seen: Summary, runs: Runs, now: datetime, *, late: timedelta) -> Iterator[Message]:
    """A night that did not begin, that missed its deadline, whose run failed: one message for each cause."""
    night = f"night of {tick.slot}, {tick.date}"
    where = f"`{tick.dag_id}` at {tick.at:%Y-%m-%d %H:%M} UTC"
    if not seen.builds and not runs.there and now >= tick.at + late:
        known = "neither Airflow nor the ledger knows" if runs.there is False else "the ledger does not know"
        yield Message(
            f"not-started:{tick.slot}:{tick.date}", Event.NOT_STARTED, "error", f"{night}: did not start",
            f"The schedule wanted a run of {where}; {known} of one.",
            f"See that the DAG is not paused and has no import error, that the scheduler runs, and that no earlier "
            f"runs fill `max_active_runs`; then: airflow dags trigger {tick.dag_id} --conf "
            f"'{{\"build_date\": \"{tick.date}\"}}'",
        )  # fmt: skip
        return
    if now >= tick.until and not seen.good:
        yield Message(
            f"deadline:{tick.slot}:{tick.date}", Event.DEADLINE, "error",
            f"{night}: not whole at its cut-off, {tick.until:%H:%M} UTC",
            _missing(seen) if seen.builds else "No build of this date arrived.",
            "See the reasons; artifacts that arrive now are installed by running the DAG by hand for this date.",
        )  # fmt: skip
    failed: dict[str, list[str]] = {}
    for one in seen.lines:
        if one.fate is Fate.FAILED and one.run is not None:
            failed.setdefault(one.run, []).append(f"{one.name}: {one.reason}")
    for run, lines in failed.items():
        log = next((one.log for one in seen.lines if one.run == run and one.log), None)
        yield Message(
            f"run-failed:{run}", Event.RUN_FAILED, "error", f"{night}: {len(lines)} artifacts failed", _shown(lines),
            "When the cause is cured, clear the failed tasks of the run.", {"log": log} if log else {},
        )  # fmt: skip
    if runs.failed and not failed:
        yield Message(
            f"run-failed:{tick.slot}:{tick.date}", Event.RUN_FAILED, "error", f"{night}: its run failed",
            f"The run of {where} failed. {_missing(seen) if seen.lacking else 'No artifact of it did.'}",
            "See which of its tasks failed, and its log; when the cause is cured, clear that task.",
        )  # fmt: skip


def _missing(seen: Summary) -> str:
    return _shown([f"{one.name}: {one.fate.value}: {one.reason}" for one in seen.lacking]) or "; ".join(seen.notes)


def _shown(lines: Iterable[str]) -> str:
    found = list(lines)
    more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([*found[:SHOWN], *more])
