"""Alerts for runs that failed, however they began: by a schedule, by hand, as a backfill, for an asset.

`tell_failed_run` runs once for each failed run of our DAGs. It uses the keys of the watch
(`include.monitoring.watch`), so that both together send one message for each cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from include.errors import code_of
from include.ledger.errors import LedgerError
from include.monitoring.alerts import Runs, Tick, alerts_of, site_cure
from include.monitoring.findings import NotReady
from include.monitoring.render import read_summary
from include.monitoring.summary import SHOWN, no_log
from include.monitoring.watch import nights, tell_failures, whitelist_alerts
from include.nightlies.errors import GateClosed, NotVerified
from include.nightlies.records import builds, publications as records, questions
from include.nightlies.rules.approval import Answer
from include.nightlies.rules.publication import Publication, State
from include.notify import DeliveryOutcome, Message, Notifier, NotifyEvent, append_note, claim, take_notes
from include.site.site import Site

NIGHT = "nightly_install"
"""The ids of the DAGs of nights begin with it."""
TOLD_BY_THEMSELVES = {NotReady.code}
"""Errors of tasks that send their own messages."""
OF_THE_GATE = {GateClosed.code, NotVerified.code}
"""Errors that only repeat that something before them failed."""


@dataclass(frozen=True, slots=True)
class TaskFault:
    """Reason why a task failed. `code`: of its error, or "". `subject`: the repository that it was for, if known."""

    task: str
    code: str
    text: str
    subject: str | None = None

    @classmethod
    def of(cls, task: str, error: BaseException, text: str, subject: str | None = None) -> TaskFault:
        """That of an error."""
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
        night = next((tick for tick in known if tick.date == build.date), Tick(slot.name, now, build.date, now))
    if night is None:
        return False
    seen = read_summary(site.ledger, slot, night.date, now=now, log_of=log_of)
    lines = tuple(line for line in seen.lines if line.run == run.name)
    tell_failures(site, night, replace(seen, lines=lines), lambda _: True, now, tell)
    if run.name in seen.troubled:
        return True
    late = list(alerts_of(night, seen, Runs(there=True), now, late=timedelta(0)))
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
        if (cure := site_cure(code)) is not None:
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
