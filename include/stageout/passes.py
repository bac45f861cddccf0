"""A pass: components take batch after batch, in turns, until nothing is due or the time is over; reminders of
credentials."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from sqlalchemy import Connection, func, select, update

from include.errors import NightshiftError
from include.ledger.acts import Act, ActKind, note_act
from include.ledger.engine import Bind, reading, writing
from include.notify import DeliveryOutcome, Message, Notifier, NotifyEvent, NotifySite
from include.stageout.archive import archive
from include.stageout.components.cleaner import clean
from include.stageout.components.monitor import MonitorReport, monitor
from include.stageout.components.register import register
from include.stageout.components.reporter import read_back, report
from include.stageout.components.retry_manager import retry_waiting
from include.stageout.components.submitter import submit
from include.stageout.opening import Stageout
from include.stageout.requests import insert_new
from include.stageout.states import TransferState
from include.stageout.tables import stageout_passes, stageout_queues, stageout_transfers

_MOST_LINKS = 5


def waiting_for_credentials(bind: Bind) -> dict[str, dict[tuple[str, str], int]]:
    """The users whose transfers wait for a credential, with the number of files by link."""
    transfers, queues = stageout_transfers.c, stageout_queues.c
    by_queue = (
        select(transfers.queue, func.count().label("files"))
        .where(transfers.state == TransferState.NEEDS_CREDENTIAL.value)
        .group_by(transfers.queue)
        .subquery()
    )
    query = select(queues.owner, queues.source, queues.destination, by_queue.c.files)
    found: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    with reading(bind) as connection:
        for row in connection.execute(query.join(by_queue, by_queue.c.queue == queues.id)):
            link = (row.source, row.destination)
            found[row.owner][link] = found[row.owner].get(link, 0) + row.files
    return dict(found)


def remind(site: NotifySite, *, now: datetime) -> Iterator[tuple[str, DeliveryOutcome]]:
    """Send a message for each such user, once within the window of `notify:`; the users, and what became of each."""
    waiting = waiting_for_credentials(site.ledger)
    notifier = Notifier.of(site) if waiting else None
    for owner, links in sorted(waiting.items()):
        if notifier is not None:
            yield owner, notifier.tell(reminder(owner, links), now=now)


def reminder(owner: str, links: Mapping[tuple[str, str], int]) -> Message:
    """The message about one user."""
    files = sum(links.values())
    named = [f"{source} to {destination}: {count}" for (source, destination), count in sorted(links.items())]
    more = len(named) - _MOST_LINKS
    text = f"{files} files of {owner} wait for a credential. By link: {'; '.join(named[:_MOST_LINKS])}"
    return Message(
        key=f"credential:{owner}",
        event=NotifyEvent.CREDENTIAL,
        severity="warning",
        title=f"transfers of {owner} need a credential",
        text=text + (f"; and {more} more links." if more > 0 else "."),
        cure=f"{owner} renews the proxy or token. The transfers then go on by themselves, and no retry is spent.",
    )


BATCH = 1000


def note_passes(bind: Bind, components: Collection[str], *, now: datetime) -> None:
    """Record that a pass of these components begins."""
    again = update(stageout_passes).where(stageout_passes.c.component.in_([*components])).values(began_at=now)
    rows = [{"component": component, "began_at": now} for component in sorted(components)]

    def work(connection: Connection) -> None:
        if connection.execute(again).rowcount < len(rows):
            connection.execute(insert_new(stageout_passes), rows)

    writing(bind, work)


def last_passes(bind: Bind) -> dict[str, datetime]:
    """When a pass of each component began last."""
    with reading(bind) as connection:
        return {row.component: row.began_at for row in connection.execute(select(stageout_passes))}


class StageoutBatch(Protocol):
    """A component: one batch of it. Its report is a dataclass; nothing was due if all of its whole numbers are 0."""

    def __call__(self, stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> Any: ...


def _monitor(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> MonitorReport:
    """The monitor takes jobs, not files."""
    return monitor(stageout, now=now, limit=max(1, limit // stageout.settings.files_per_job))


COMPONENTS: Mapping[str, StageoutBatch] = {
    "submit": submit,
    "monitor": _monitor,
    "report": report,
    "read_back": read_back,
    "retry": retry_waiting,
    "register": register,
    "clean": clean,
    "archive": archive,
}
"""By the names that tasks give them."""


class PassEnd(Enum):
    """The reason for the end of a pass."""

    IDLE = "nothing is due"
    TIME = "the time is over"


@dataclass(slots=True)
class ComponentAccount:
    """The work of one component in a pass: its batches, and the sums of their counts. `fault`: why it ended early."""

    batches: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    fault: NightshiftError | None = None

    def to_json(self) -> dict[str, Any]:
        """Without the counts that are 0."""
        fault = {} if self.fault is None else {"fault": self.fault.code}
        return {"batches": self.batches, **{name: count for name, count in self.counts.items() if count}, **fault}


@dataclass(frozen=True, slots=True)
class PassAccount:
    """The work of a pass, by component."""

    ended: PassEnd
    components: Mapping[str, ComponentAccount]

    def require_sound(self) -> None:
        """Raise the error of the first component that ended early."""
        for account in self.components.values():
            if account.fault is not None:
                raise account.fault

    def to_json(self) -> dict[str, Any]:
        """The account, for the task's result."""
        return {"ended": self.ended.value, **{name: component.to_json() for name, component in self.components.items()}}


def run_pass(
    stageout: Stageout,
    components: Mapping[str, StageoutBatch],
    *,
    now: Callable[[], datetime],
    left: Callable[[], bool],
    limit: int = BATCH,
    say: Callable[[str, Mapping[str, int]], None] = lambda _, __: None,
) -> PassAccount:
    """Run batches of the components in turns. A component that raises an error ends early, and no other with it.

    `components`: by name, in the order of their turns. `left`: whether there is time for a further batch. A batch that
    has begun is finished. `limit`: rows of a batch at most. `say`: takes the counts of each batch that found something.
    """
    accounts = {name: ComponentAccount() for name in components}
    try:
        ended = _turns(stageout, components, accounts, now=now, left=left, limit=limit, say=say)
    finally:
        # an act of the pass, and none of each batch: a backlog has many
        if removed := sum(account.counts["cleaned"] for account in accounts.values()):
            what = f"{removed} sources; each is in the history of its transfer"
            why, who = "the copy is verified and registered", str(stageout.worker.name)
            note_act(stageout.ledger, Act(now(), ActKind.CLEANING, what, who, why))
    return PassAccount(ended, accounts)


def _turns(
    stageout: Stageout,
    components: Mapping[str, StageoutBatch],
    accounts: Mapping[str, ComponentAccount],
    *,
    now: Callable[[], datetime],
    left: Callable[[], bool],
    limit: int,
    say: Callable[[str, Mapping[str, int]], None],
) -> PassEnd:
    """Run the batches of `run_pass`, with their counts in the accounts; return why they ended."""
    at_work = dict(components)
    while at_work:
        busy = False
        for name, component in list(at_work.items()):
            if not left():
                return PassEnd.TIME
            account = accounts[name]
            try:
                counts, found = counts_of(component(stageout, now=now, limit=limit))
            except NightshiftError as error:
                account.fault = error
                del at_work[name]
                continue
            account.batches += 1
            account.counts.update(counts)
            busy |= found
            if found:
                say(name, counts)
        if not busy:
            break
    return PassEnd.IDLE


def counts_of(report: Any) -> tuple[dict[str, int], bool]:
    """The counts of a batch's report, those of mappings by their keys, and whether anything was due."""
    found: dict[str, int] = {}
    due = False
    for name in (column.name for column in fields(report)):
        value = getattr(report, name)
        if isinstance(value, int):
            found[name] = int(value)
            due |= value != 0
        elif isinstance(value, Mapping):
            found |= {f"{name}: {key}": count for key, count in value.items() if isinstance(count, int)}
    return {name: count for name, count in found.items() if count}, due
