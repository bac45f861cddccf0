"""The alerts about a slot's night, from its schedule, its summary and the checks before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from include.monitoring.findings import Finding, PreflightReport, Severity
from include.monitoring.summary import Line, Summary
from include.nightlies.rules.build_date import resolve_build_date
from include.nightlies.rules.passes import cutoff, first_run_id, tick_of
from include.notify.message import Message, NotifyEvent
from include.notify.notifier import Notifier
from include.settings.model import Slot
from include.site.site import Site

_EVENTS = {"whitelist": NotifyEvent.WHITELIST, "leases": NotifyEvent.STUCK_LEASE}


def tell(site: Site, report: PreflightReport) -> None:
    """One message for each error; of warnings only those that are shown nowhere else: whitelists that end."""
    notifier = Notifier.of(site)
    for finding in report.findings:
        if finding.severity is Severity.ERROR or (
            finding.severity is Severity.WARNING and finding.check == "whitelist"
        ):
            notifier.tell(message(finding), now=datetime.now(UTC))


def message(finding: Finding) -> Message:
    """The message about a finding; the same thing is the same cause, whatever was found."""
    event = _EVENTS.get(finding.check, NotifyEvent.PREFLIGHT)
    return Message(
        key=f"{event.value}:{finding.check}:{finding.subject}",
        event=event,
        severity=finding.severity.value,
        title=f"{finding.check} {finding.subject}: {finding.seen}",
        text=finding.seen,
        cure=finding.cure,
    )


LOOK_BACK = timedelta(hours=24)
"""How old a night may be that is still watched."""
RETRIED_WITHIN = timedelta(minutes=8)
"""A try that failed is followed by the next one within five minutes and what a busy scheduler adds."""
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Tick:
    """A night: when it was to begin, or began, which build it installs, and when it ends."""

    slot: str
    at: datetime
    date: date
    until: datetime

    @property
    def dag_id(self) -> str:
        return f"nightly_install_{self.slot}"

    @property
    def first_runs(self) -> tuple[str, str]:
        """The ids of the runs that may have begun it: by its schedule, by its first artifact."""
        return f"scheduled__{self.at.isoformat()}", first_run_id(self.date)


@dataclass(frozen=True, slots=True)
class Runs:
    """What Airflow reports of the runs of a night; None where it cannot be asked.

    `waiting`: there is a run, and none of its tasks was begun yet. `failed`: the ids of those that failed, of all
    passes.
    """

    there: bool | None = None
    waiting: bool | None = None
    failed: tuple[str, ...] = ()


class Airflow(Protocol):
    """Who is asked about runs."""

    def runs_of(self, night: Tick) -> Runs: ...

    def has_ended(self, run: str) -> bool | None:
        """Tell whether a run, by its name in the ledger, is over; None if that is not known."""


class Unasked:
    """Used where Airflow cannot be asked: knows nothing of any run."""

    def runs_of(self, night: Tick) -> Runs:  # noqa: ARG002
        return Runs()

    def has_ended(self, run: str) -> bool | None:  # noqa: ARG002
        return None


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


def begun_by_artifact(slot: Slot, begun: Mapping[date, datetime], known: Iterable[Tick]) -> list[Tick]:
    """The nights of `begun` that `known` does not have; `begun`: when their first artifact was seen, by date."""
    there = {build.date for build in known}
    return [
        Tick(slot.name, at, day, cutoff(slot.cutoff, tick_of(slot, day) or at, timezone=slot.timezone))
        for day, at in begun.items()
        if day not in there
    ]


def summary_due(slot: Slot, tick: Tick, now: datetime) -> bool:
    """Tell whether it is past the slot's hour for the summary of a night; that hour follows the night's beginning."""
    return slot.summary_at is not None and now >= cutoff(slot.summary_at, tick.at, timezone=slot.timezone)


def has_left(line: Line, ended: bool | None, now: datetime) -> bool:
    """Tell whether the pass that failed with an artifact is done with it: its run is over, or no try came for so
    long."""
    if ended or line.run is None:
        return True
    return line.ended_at is None or now - line.ended_at >= RETRIED_WITHIN


def alerts_of(tick: Tick, seen: Summary, runs: Runs, now: datetime, *, late: timedelta) -> Iterator[Message]:
    """A night that did not begin, that missed its deadline, whose runs failed: one message for each cause.

    Failures of single artifacts are reported by `failures`, and not again as the failure of their run.
    """
    night = f"night of {tick.slot}, {tick.date}"
    where = f"`{tick.dag_id}` at {tick.at:%Y-%m-%d %H:%M} UTC"
    if not seen.builds and not seen.blocked and now >= tick.at + late and (runs.waiting or not runs.there):
        known = "neither Airflow nor the ledger knows" if runs.there is False else "the ledger does not know"
        observed = "it is queued, and none of its tasks has begun" if runs.waiting else f"{known} of one"
        yield Message(
            f"not-started:{tick.slot}:{tick.date}", NotifyEvent.NOT_STARTED, "error", f"{night}: did not start",
            f"The schedule wanted a run of {where}; {observed}.",
            f"Check that the DAG is not paused and has no import error, that the scheduler runs, and that no earlier "
            f"runs fill `max_active_runs`; then, if there is none: "
            f"nightshift lab airflow dags trigger {tick.dag_id} --conf '{{\"build_date\": \"{tick.date}\"}}'",
        )  # fmt: skip
        return
    # a build that the quality gate keeps back is reported by the failure of its run
    if now >= tick.until and not seen.blocked and (seen.lacking or not seen.builds):
        yield Message(
            f"deadline:{tick.slot}:{tick.date}", NotifyEvent.DEADLINE, "error",
            f"{night}: not whole at its cut-off, {tick.until:%H:%M} UTC",
            _missing(seen) if seen.builds else "No build of this date arrived.",
            "See the reasons; artifacts that arrive now are installed by running the DAG by hand for this date.",
        )  # fmt: skip
        return
    for run in runs.failed:
        name = f"{tick.dag_id}/{run}"
        if name in seen.troubled:
            continue
        lacking = f"It lacks:\n{_missing(seen)}" if seen.lacking else "No artifact of it did."
        yield Message(
            f"run-failed:{name}", NotifyEvent.RUN_FAILED, "error", f"{night}: the run {run} failed",
            f"The run {run} of `{tick.dag_id}` failed. {lacking}",
            "See which of its tasks failed, and its log; when the cause is cured, clear that task. A night that is "
            "open goes on with its next pass.",
        )  # fmt: skip


def _missing(seen: Summary) -> str:
    return _shown([f"{line.name}: {line.fate.value}: {line.reason}" for line in seen.lacking]) or "; ".join(seen.notes)


def _shown(lines: Iterable[str]) -> str:
    found = list(lines)
    more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([*found[:SHOWN], *more])
