"""Alerts about nights that are late or wrong, and causes for which artifacts of a night failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from include.aliencache import errors as aliencache
from include.cvmfs import errors as cvmfs
from include.errors import Concern, kinds_in
from include.fts import errors as fts
from include.gateway import errors as gateway
from include.ledger import errors as ledger
from include.monitoring.findings import Finding, PreflightReport, Severity
from include.monitoring.summary import SHOWN, ArtifactOutcome, Line, Summary
from include.nightlies.rules.passes import cutoff, first_run_id, resolve_build_date, tick_of
from include.notify import Message, Notifier, NotifyEvent
from include.publishers import errors as publishers
from include.settings import errors as settings
from include.settings.model import Slot
from include.site.site import Site
from include.stageout import errors as stageout
from include.storage import errors as storage

REJECTED = "artifact-rejected"
"""Used as the code of an artifact that its own index made unusable."""

SUBJECTS = (aliencache, cvmfs, fts, gateway, ledger, publishers, settings, stageout, storage)
"""Modules of errors that concern a part of the site."""

_CURES: Mapping[Concern, str] = {
    Concern.STORE: "Check the stores: `nightshift preflight` reports what is wrong with them.",
    Concern.GATEWAY: "Check the gateway: `nightshift preflight` reports what is wrong with it.",
    Concern.REPOSITORY: "Check the repository: `nightshift preflight`, then `nightshift repo check`.",
    Concern.FTS: "Check the FTS server: *Test* of its connection reports what is wrong.",
    Concern.NODE: "Check the publisher node: `nightshift preflight` reports whether we can log in.",
    Concern.CONFIGURATION: "Check the configuration: `nightshift settings check`.",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Artifacts of a night that failed in the same way, and what was skipped because of them.

    `site_cure`: the hint, if the error is the site's and not the artifacts'; such a cause stays the same one, whatever
    it affects later.
    """

    slot: str
    date: date
    code: str
    lines: tuple[Line, ...]
    blocked: tuple[Line, ...] = ()
    site_cure: str | None = None

    def key_of(self, line: Line) -> str:
        """The key of this failure of an artifact; the same if a later pass fails with it in the same way."""
        return f"failed:{self.slot}:{self.date}:{line.build_id}:{line.name}:{self.code}"

    def of(self, lines: Iterable[Line]) -> Cause:
        """The same cause, with some of its artifacts only."""
        return replace(self, lines=tuple(lines))

    def message(self, *, until: datetime | None, now: datetime) -> Message:
        """The message to people about it. `until`: when the night ends."""
        first, night = self.lines[0], f"night of {self.slot}, {self.date}"
        what = f"{first.name} failed" if len(self.lines) == 1 else f"{len(self.lines)} artifacts failed"
        named = ",".join(sorted(line.name for line in self.lines)) if self.site_cure is None else ""
        runs = {line.run: line.log for line in self.lines if line.run and line.log}
        reasons = (f"{line.name}{'' if line.required else ' (optional)'}: {line.reason}" for line in self.lines)
        return Message(
            key=f"failed:{self.slot}:{self.date}:{self.code}:{named}",
            event=NotifyEvent.FAILED,
            severity="error",
            title=f"{night}: {what}: {self.code}",
            text="\n".join(filter(None, [_shown(reasons), *self._blocked()])),
            cure=" ".join(filter(None, (self.site_cure, self._what_happens(until, now)))),
            links={("log" if len(runs) == 1 else f"log of {run}"): url for run, url in runs.items()},
            code=self.code,
        )

    def _blocked(self) -> list[str]:
        if not self.blocked:
            return []
        names = ", ".join(line.name for line in self.blocked[:SHOWN])
        more = f" and {len(self.blocked) - SHOWN} more" if len(self.blocked) > SHOWN else ""
        return [f"Not installed either, since they depend on it: {names}{more}."]

    def _what_happens(self, until: datetime | None, now: datetime) -> str:
        again = "Artifacts that are rebuilt go in with the next pass" if self.site_cure is None else ""
        if until is not None and now < until:
            last = f"the night's last pass tries all of it again, at {until:%H:%M} UTC at the latest"
            return f"{again}; {last}." if again else f"{last[0].upper()}{last[1:]}."
        run = next((line.run for line in self.lines if line.run), None)
        clear = f"clear the failed tasks of run {run.partition('/')[2]}, or " if run else ""
        dag = f"nightly_install_{self.slot}"
        return f"The night is over: when it is cured, {clear}run {dag} by hand with build_date {self.date.isoformat()}."


def causes(seen: Summary, has_left: Callable[[Line], bool]) -> Iterator[Cause]:
    """The causes of what failed in a night, where no try of its pass is to come any more.

    Args:
        has_left: Whether the pass that failed with an artifact is done with it.
    """
    failed = [line for line in seen.lines if line.fate is ArtifactOutcome.FAILED and has_left(line)]
    by_code: dict[str, list[Line]] = {}
    for line in failed:
        by_code.setdefault(line.code or REJECTED, []).append(line)
    for code, lines in sorted(by_code.items()):
        yield Cause(seen.slot, seen.date, code, tuple(lines), tuple(_blocked_by(lines, seen.lines)), site_cure(code))


def untold(cause: Cause, told: Collection[str]) -> Cause | None:
    """The cause with only the artifacts whose keys are not in `told`; None if it has no others."""
    left = [line for line in cause.lines if cause.key_of(line) not in told]
    return cause.of(left) if left else None


def site_cure(code: str) -> str | None:
    """The hint for an error that is the site's, not an artifact's; None for all others."""
    concern = _CONCERNS.get(code)
    return None if concern is None else _CURES.get(concern)


def _blocked_by(failed: Iterable[Line], lines: Sequence[Line]) -> Iterator[Line]:
    """Yield what was skipped because of these, or because of what was skipped because of them."""
    names = {line.name for line in failed}
    waiting = [line for line in lines if line.fate is ArtifactOutcome.BLOCKED and line.blocked_by is not None]
    while found := [line for line in waiting if line.blocked_by in names]:
        names |= {line.name for line in found}
        waiting = [line for line in waiting if line not in found]
        yield from found


_CONCERNS: Mapping[str, Concern] = {code: kind.concern for code, kind in kinds_in(*SUBJECTS).items()}


_EVENTS = {"whitelist": NotifyEvent.WHITELIST, "leases": NotifyEvent.STUCK_LEASE}


def tell(site: Site, report: PreflightReport) -> None:
    """A message for each error; of warnings only those that are shown nowhere else: whitelists that end."""
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
"""Age up to which a night is watched."""
RETRIED_WITHIN = timedelta(minutes=8)
"""A try that failed is followed by the next one within five minutes and what a busy scheduler adds."""


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
    """Runs of a night as Airflow reports them; None where it cannot be asked.

    `waiting`: there is a run, and none of its tasks was begun yet. `failed`: the ids of those that failed, of all
    passes.
    """

    there: bool | None = None
    waiting: bool | None = None
    failed: tuple[str, ...] = ()


class Airflow(Protocol):
    """Source of the state of runs."""

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
            f"runs fill `max_active_runs`; then, if the run does not exist, start it, "
            f"as `airflow dags trigger {tick.dag_id} --conf '{{\"build_date\": \"{tick.date}\"}}'`",
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
