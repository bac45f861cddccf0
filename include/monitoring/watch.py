"""Watches all nights of a site: notifies people of what goes wrong, and sends each night's summary at its hour.

`tell_failed_run` runs once for each failed run of our DAGs, however it began: by a schedule, by hand, as a backfill,
for an asset. It uses the keys of the watch, so that both together send one message for each cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path

from include.cvmfs.errors import CvmfsError, WhitelistExpired
from include.errors import code_of
from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import GatewayError
from include.gateway.protocol import TaskName
from include.ledger.errors import LedgerError
from include.monitoring import alerts
from include.monitoring.findings import NotReady, Severity
from include.monitoring.render import begun_since, is_made, note_made, read_summary, store_summary, to_html, to_text
from include.monitoring.store_checks import room, written
from include.monitoring.summary import SHOWN, Line, Summary, no_log
from include.nightlies.errors import GateClosed, NotVerified
from include.nightlies.records import builds, publications as records, questions
from include.nightlies.rules.approval import Answer
from include.nightlies.rules.passes import by_artifact
from include.nightlies.rules.publication import Publication, State
from include.notify import (
    DeliveryOutcome,
    Message,
    Notifier,
    NotifyEvent,
    append_note,
    claim,
    seen_of,
    seen_since,
    take_notes,
    undelivered,
)
from include.settings.errors import SettingsError
from include.settings.model import Slot
from include.site.site import Site
from include.storage.errors import StoreError

log = logging.getLogger(__name__)

GAP = timedelta(minutes=30)
"""If two looks are further apart, it is not known whether a lease was held in between."""
NIGHT = "nightly_install"
"""The ids of the DAGs of nights begin with it."""
TOLD_BY_THEMSELVES = {NotReady.code}
"""Errors of tasks that send their own messages."""
OF_THE_GATE = {GateClosed.code, NotVerified.code}
"""Errors that only repeat that something before them failed."""


@dataclass(slots=True)
class Watched:
    """The result of one look: messages by what became of them, summaries that were made, and what could not be seen."""

    told: list[tuple[Message, DeliveryOutcome]] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def watch(
    site: Site,
    *,
    now: datetime,
    airflow: alerts.Airflow = alerts.Unasked(),  # noqa: B008 - it has no state
    log_of: Callable[[str], str | None] = no_log,
    logs: Path | None = None,
) -> Watched:
    """Look once. What cannot be seen of one slot or repository is a fault of its own and hides no other.

    ``logs``: where Airflow keeps the logs of tasks. A task that cannot write its log reports nothing, so people are
    notified while there is still room.
    """
    settings, done = site.settings, Watched()
    notifier = Notifier.of(site)

    def tell(message: Message, window: timedelta | None = None) -> DeliveryOutcome:
        outcome = notifier.tell(message, now=now, window=window)
        done.told.append((message, outcome))
        return outcome

    for finding in room(written(settings, settings.stores, logs)):
        if finding.severity is Severity.ERROR:
            tell(alerts.message(finding))
    late = timedelta(minutes=settings.notify.late_minutes)
    for slot in settings.slots.values():
        for tick in nights(site, slot, now):
            seen = read_summary(site.ledger, slot, tick.date, now=now, log_of=log_of)
            tell_failures(site, tick, seen, _left(airflow, now), now, tell)
            for message in alerts.alerts_of(tick, seen, airflow.runs_of(tick), now, late=late):
                tell(message)
            made = is_made(site.ledger, slot.name, tick.date, sent=bool(notifier.ways))
            if alerts.summary_due(slot, tick, now) and not made:
                _send(site, slot, seen, now, tell, done)
    # without a way they would be seen again and again, and never grow old
    for alert in undelivered(site.ledger, now - alerts.LOOK_BACK, NotifyEvent.RUN_FAILED) if notifier.ways else ():
        tell(Message(alert.key, NotifyEvent.RUN_FAILED, alert.severity, alert.title, alert.text))
    for fqrn in settings.repositories:
        for look in (whitelist_alerts, _leases):
            try:
                for message in look(site, fqrn, now):
                    tell(message)
            except (CvmfsError, StoreError, GatewayError, SettingsError, OSError) as error:
                done.faults.append(f"{fqrn}: {error}")
    return done


def nights(site: Site, slot: Slot, now: datetime) -> list[alerts.Tick]:
    """The nights of a slot that are watched."""
    scheduled = alerts.ticks(slot, now)
    if not by_artifact(slot):
        return scheduled
    return scheduled + alerts.begun_by_artifact(slot, begun_since(site.ledger, slot, now - alerts.LOOK_BACK), scheduled)


def _left(airflow: alerts.Airflow, now: datetime) -> Callable[[Line], bool]:
    ended: dict[str, bool | None] = {}

    def left(line: Line) -> bool:
        if line.run is not None and line.run not in ended:
            ended[line.run] = airflow.has_ended(line.run)
        return alerts.has_left(line, ended.get(line.run or ""), now)

    return left


def tell_failures(
    site: Site,
    night: alerts.Tick,
    seen: Summary,
    left: Callable[[Line], bool],
    now: datetime,
    tell: Callable[[Message], DeliveryOutcome],
) -> None:
    """Notify of what a pass has left failed: once for each cause, and for an artifact's own failures once for each."""
    window = timedelta(hours=site.settings.notify.window_hours)
    for cause in alerts.causes(seen, left):
        keys = [cause.key_of(line) for line in cause.lines]
        new = alerts.untold(cause, seen_of(site.ledger, keys, now - window))
        if new is None:
            continue
        if tell(new.message(until=night.until, now=now)) not in {DeliveryOutcome.FAILED, DeliveryOutcome.NOBODY}:
            for line in new.lines:
                seen_since(site.ledger, cause.key_of(line), now, window)


def _send(
    site: Site,
    slot: Slot,
    seen: Summary,
    now: datetime,
    tell: Callable[[Message, timedelta | None], DeliveryOutcome],
    done: Watched,
) -> None:
    file = store_summary(site.settings.paths.var, seen)
    message = Message(
        key=f"summary:{slot.name}:{seen.date}",
        event=NotifyEvent.SUMMARY,
        severity="ok" if seen.good else "error",
        title=seen.headline,
        text=to_text(seen),
        html=to_html(seen),
    )
    outcome = tell(message, timedelta(0))  # who may send it is settled by the ledger's row of summaries
    faults = {DeliveryOutcome.FAILED: "no message could be sent", DeliveryOutcome.NOBODY: "no way is configured"}
    note_made(site.ledger, seen, file, now=now, fault=faults.get(outcome))
    done.summaries.append(seen.headline)


def whitelist_alerts(site: Site, fqrn: str | None, now: datetime) -> list[Message]:
    """The alerts about a repository's whitelist; none while it lasts for long enough."""
    if fqrn is None:
        return []
    cure = f"Where the master key is: nightshift repo resign {fqrn}"
    try:
        whitelist = site.repository(fqrn).trusted.whitelist
    except WhitelistExpired as over:
        what = f"whitelist of {fqrn} has ended"
        return [
            Message(
                f"whitelist:{fqrn}:ended", NotifyEvent.WHITELIST, "error", what, f"{over}; clients refuse it.", cure
            )
        ]
    if whitelist is None:
        return []
    days = (whitelist.expires - now) / timedelta(days=1)
    if days >= site.settings.notify.whitelist_days:
        return []
    return [
        Message(
            f"whitelist:{fqrn}:{whitelist.expires.date()}", NotifyEvent.WHITELIST, "error" if days < 2 else "warning",
            f"whitelist of {fqrn} ends in {days:.1f} days",
            f"It ends at {whitelist.expires:%Y-%m-%d %H:%M} UTC; from then on clients refuse the repository.",
            cure,
        )
    ]  # fmt: skip


def _leases(site: Site, fqrn: str, now: datetime) -> list[Message]:
    with site.gateway(fqrn) as client:
        held = [lease for lease in client.leases() if lease.repository == fqrn]
    limit, found = timedelta(minutes=site.settings.notify.stuck_lease_minutes), []
    for lease in held:
        since = seen_since(site.ledger, lease_key(lease), now, GAP)
        if now - since >= limit:
            found.append(stuck(lease, since, now))
    return found


def lease_key(lease: LeaseInfo) -> str:
    """Under which key the ledger has since when a lease has been seen."""
    return f"lease:{lease.full_path}:{lease.key_id}:{lease.hostname}"


def stuck(lease: LeaseInfo, since: datetime, now: datetime) -> Message:
    """A lease that is held for longer than any should be."""
    whose = "a task of ours" if TaskName.parse(lease.hostname) else "another user"
    minutes = (now - since).total_seconds() / 60
    return Message(
        f"stuck-lease:{lease.full_path}:{lease.key_id}:{lease.hostname}", NotifyEvent.STUCK_LEASE, "warning",
        f"{lease.full_path} has been leased for {minutes:.0f} minutes",
        f"Held by {whose}, {lease.hostname!r} with key {lease.key_id}. No one else can publish there.",
        "See whether its holder still works. Of a dead task the DAG `leases` ends it; else let an administrator of the "
        "gateway end it.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskFault:
    """Reason why a task failed. `code`: of its error, or "". `subject`: the repository that it was for, if known."""

    task: str
    code: str
    text: str
    subject: str | None = None

    @classmethod
    def of(cls, task: str, error: BaseException, text: str, subject: str | None = None) -> TaskFault:
        """Make the fault of an error."""
        return cls(task, code_of(error), text, subject)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that Airflow reports as failed. `by_itself`: a schedule or asset began it, so no person awaits its result.

    `reason`: Airflow's word for it; `task`: the last task that failed, if one did.
    """

    dag_id: str
    run_id: str
    by_itself: bool = False
    reason: str = ""
    task: str | None = None

    @property
    def name(self) -> str:
        """Return what the ledger calls it."""
        return f"{self.dag_id}/{self.run_id}"


def note_fault(site: Site, run: str, fault: TaskFault, *, now: datetime) -> None:
    """Keep why a task failed until its run has ended."""
    append_note(site.ledger, _notes(run), asdict(fault), now=now, limit=SHOWN)


def tell_failed_run(
    site: Site,
    run: FailedRun,
    *,
    now: datetime,
    log_of: Callable[[str], str | None] = no_log,
    page_of: Callable[[str], str | None] = no_log,
) -> list[tuple[Message, DeliveryOutcome]]:
    """Send a message for each cause of a failed run of which people were not notified yet.

    Args:
        log_of: Where a run's page is.
        page_of: Where the page of a run's night is.

    Returns:
        The messages, with what became of each.
    """
    notifier, done = Notifier.of(site), list[tuple[Message, DeliveryOutcome]]()

    def tell(message: Message) -> DeliveryOutcome:
        outcome = notifier.tell(message, now=now)
        done.append((message, outcome))
        return outcome

    try:
        messages = _messages(site, run, now, log_of, tell)
    except LedgerError as error:
        messages = [_of_run(run, [TaskFault.of("", error, f"The ledger cannot be asked: {error}")])]
    pages = {"run": log_of(run.name), "night": page_of(run.name) if run.dag_id.startswith(NIGHT) else None}
    for message in messages:
        tell(replace(message, links={**message.links, **{name: url for name, url in pages.items() if url}}))
    return done


def _messages(
    site: Site,
    run: FailedRun,
    now: datetime,
    log_of: Callable[[str], str | None],
    tell: Callable[[Message], DeliveryOutcome],
) -> list[Message]:
    """The messages about the run itself, after those about its artifacts' failures were sent."""
    ledger = site.ledger
    faults = [TaskFault(**note) for note in take_notes(ledger, _notes(run.name))]
    own = [fault for fault in faults if fault.code not in OF_THE_GATE | TOLD_BY_THEMSELVES]
    published = records.publications_of_run(ledger, run.name)
    told = all(fault.code in TOLD_BY_THEMSELVES for fault in faults)
    if faults and not own and (told or _was_refused(site, run)):
        return []
    if run.dag_id.startswith(NIGHT):
        if _night_is_told(site, run, published, now, log_of, tell, alone=not own):
            return []
    elif failed := [publication for publication in published if publication.state is State.FAILED]:
        own = [TaskFault(publication.destination, publication.code or "", publication.reason) for publication in failed]
    found = list(_of_faults(site, run, own or faults, now))
    if all(message.key != f"run-failed:{run.name}" for message in found):
        # the watch knows only the run: its failure is reported by what follows
        claim(ledger, _of_run(run, own), now=now, window=timedelta(hours=site.settings.notify.window_hours))
    return found


def _night_is_told(
    site: Site,
    run: FailedRun,
    published: Sequence[Publication],
    now: datetime,
    log_of: Callable[[str], str | None],
    tell: Callable[[Message], DeliveryOutcome],
    *,
    alone: bool,
) -> bool:
    """Send what the watch would send about the run's night; whether nothing is left to send.

    Args:
        alone: No task failed but those that repeat what is missing.
    """
    of_build = next(
        (publication for publication in published if publication.slot is not None and publication.build_id is not None),
        None,
    )
    slot = site.settings.slots.get((of_build.slot if of_build else None) or run.dag_id.removeprefix(f"{NIGHT}_"))
    if slot is None:
        return False
    known = nights(site, slot, now)
    night = next((tick for tick in known if run.run_id in tick.first_runs), None)
    build = builds.build(site.ledger, slot.name, of_build.build_id) if of_build and of_build.build_id else None
    if build is not None:
        night = next((tick for tick in known if tick.date == build.date), alerts.Tick(slot.name, now, build.date, now))
    if night is None:
        return False
    seen = read_summary(site.ledger, slot, night.date, now=now, log_of=log_of)
    lines = tuple(line for line in seen.lines if line.run == run.name)
    tell_failures(site, night, replace(seen, lines=lines), lambda _: True, now, tell)
    if run.name in seen.troubled:
        return True
    late = list(alerts.alerts_of(night, seen, alerts.Runs(there=True), now, late=timedelta(0)))
    if night not in known or not run.by_itself or not alone or not late:
        return False
    for message in late:
        tell(message)
    return True


def _of_faults(site: Site, run: FailedRun, faults: Sequence[TaskFault], now: datetime) -> Iterator[Message]:
    """Yield one message for each fault of the site or of a DAG that runs by itself; one for all others of the run."""
    others = list[TaskFault]()
    for code, same in groupby(sorted(faults, key=lambda fault: fault.code), lambda fault: fault.code):
        found = list(same)
        if (cure := alerts.site_cure(code)) is not None:
            yield _message(f"run-failed:{run.dag_id}", run, found, cure, code=code)
        elif run.by_itself and not run.dag_id.startswith(NIGHT):
            for fault in found:
                ends = whitelist_alerts(site, fault.subject, now) if fault.task.endswith("whitelist") else []
                yield from ends or [_message(f"run-failed:{run.dag_id}:{fault.task}", run, [fault], code=code)]
        else:
            others += found
    if others or not faults:
        yield _of_run(run, others)


def _of_run(run: FailedRun, faults: Sequence[TaskFault]) -> Message:
    return _message(f"run-failed:{run.name}", run, faults)


def _message(
    key: str, run: FailedRun, faults: Sequence[TaskFault], cure: str = "", *, code: str | None = None
) -> Message:
    """`code`: of the one error of them all, which is then part of the key."""
    first = faults[0] if faults else None
    why = f": {first.code or first.task}" if first else ""
    lines = [fault.text for fault in faults[:SHOWN]]
    if not faults:
        last = f"Its task `{run.task}` failed last." if run.task else "None of its tasks failed."
        lines = [f"{last} Airflow's reason: {run.reason or 'none'}."]
    return Message(
        key if code is None else f"{key}:{code}", NotifyEvent.RUN_FAILED, "error",
        f"run {run.run_id} of {run.dag_id} failed{why}",
        "\n".join([f"The run {run.run_id} of `{run.dag_id}` failed.", *lines]),
        " ".join(filter(None, (cure, "When the cause is cured, clear the failed tasks of the run with downstream."))),
        code=first.code if first else "",
    )  # fmt: skip


def _was_refused(site: Site, run: FailedRun) -> bool:
    """Tell whether people rejected the question, or did not answer in time; the message about the answer covers
    both."""
    asked = questions.of_run(site.ledger, run.name)
    return bool(asked) and asked[-1].answer in {Answer.REJECTED, Answer.EXPIRED}


def _notes(run: str) -> str:
    return f"task-faults:{run}"
