"""Comparison of a restored ledger with repositories, FTS and storages; a person accepts the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Row, func, select

from include.errors import NightshiftError
from include.ledger.acts import LedgerRestore, accept_restores, restores_of
from include.ledger.engine import Bind, reading
from include.nightlies.records.tables import publications
from include.nightlies.rules.publication import ENDED
from include.settings.sites import ChecksumMode
from include.site.site import Site
from include.stageout.claims import release_dead
from include.stageout.components.census import take_census
from include.stageout.files import is_bare
from include.stageout.findings import FindingOutcome
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.opening import Stageout, open_stageout
from include.stageout.places.facts import FileFacts
from include.stageout.requests import AT_ONCE
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TRANSFER_ENDED, StageoutComponent, TransferState
from include.stageout.tables import stageout_queues, stageout_transfers

SHOWN = 20
"""Lines of one kind; the rest is counted."""
_T = TransferState
_UNSENT = (_T.NEW, _T.RETRY_WAIT)


class RestoreOutcome(Enum):
    """Meaning of a line for people."""

    COMPARED = "compared"
    """Nothing has to be done."""
    RECONCILED = "reconciled"
    """The ledger was put right, or is when the report is accepted."""
    DECIDE = "decide"
    """A person has to decide."""


@dataclass(frozen=True, slots=True)
class RestoreLine:
    """A line of the report. `subject`: the repository, transfer or site."""

    outcome: RestoreOutcome
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Comparison of a restored ledger with what exists. `restores`: those that no person has accepted."""

    restores: Sequence[LedgerRestore]
    lines: Sequence[RestoreLine]

    def to_json(self) -> dict[str, Any]:
        """The report as a document."""
        restores = [
            {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(each).items()}
            for each in self.restores
        ]
        return {"restores": restores, "lines": [asdict(line) | {"outcome": line.outcome.value} for line in self.lines]}


def make_report(site: Site, *, by: str, now: datetime, accepts: bool = False) -> RestoreReport:
    """Compare the ledger after a restore with repositories, FTS and storages.

    `by`: the person. `accepts`: transfers whose copies exist are moved on to be verified, and the restores are
    accepted; collections begin again. Without a restore that is pending there are no lines, and nothing is
    changed. Raises LedgerError.
    """
    restores = restores_of(site.ledger, pending=True)
    if not restores:
        return RestoreReport((), ())
    lines = [line for fqrn in sorted(site.settings.repositories) for line in _repository(site, fqrn)]
    if site.settings.sites:
        lines += _transfers(site, by, now, since=restores[0].since, moves=accepts)
    if accepts:
        accept_restores(site.ledger, by=by[:128], now=now)
    return RestoreReport(restores, lines)


# -- repositories


def _repository(site: Site, fqrn: str) -> Iterator[RestoreLine]:
    columns = publications.c
    of_repository = select(func.max(columns.revision_after)).where(columns.repository == fqrn)
    with reading(site.ledger) as connection:
        recorded = connection.scalar(of_repository) or 0
    try:
        head = site.head(fqrn)
    except (NightshiftError, OSError) as error:
        yield RestoreLine(RestoreOutcome.DECIDE, fqrn, f"its head cannot be read: {error}")
        return
    revision = head.manifest.revision
    if revision < recorded:
        what = f"its head is revision {revision}, and the ledger knows {recorded}: the store was set back, too"
        yield RestoreLine(RestoreOutcome.DECIDE, fqrn, f"{what}; publish what is missing again")
    elif revision > recorded:
        what = f"its head is revision {revision}, and the newest publication of the ledger made {recorded}"
        cure = "what is published already is found as unchanged when a night is run again"
        yield RestoreLine(RestoreOutcome.COMPARED, fqrn, f"{what}; {cure}")
    else:
        yield RestoreLine(RestoreOutcome.COMPARED, fqrn, f"its head is revision {revision}, as in the ledger")
    query = (
        select(columns.run_id, columns.destination, columns.state)
        .where(columns.repository == fqrn, columns.state.not_in([state.value for state in ENDED]))
        .order_by(columns.id.desc())
    )
    with reading(site.ledger) as connection:
        rows = connection.execute(query).all()
    for row in rows[:SHOWN]:
        place = f"{row.destination} of run {row.run_id} is {row.state} in the ledger"
        try:
            present = head.revision.nested_at(row.destination) is not None
        except NightshiftError as error:
            yield RestoreLine(RestoreOutcome.DECIDE, fqrn, f"{place}, and cannot be looked up: {error}")
            continue
        if present:
            what = "exists in the repository: run the night again, which compares it"
        else:
            what = "does not exist in the repository: run the night again, which publishes it"
        yield RestoreLine(RestoreOutcome.DECIDE, fqrn, f"{place}, and {what}")
    if len(rows) > SHOWN:
        yield RestoreLine(RestoreOutcome.DECIDE, fqrn, f"{len(rows) - SHOWN} more publications are open in the ledger")


# -- transfers


def _transfers(site: Site, by: str, now: datetime, *, since: datetime, moves: bool) -> Iterator[RestoreLine]:
    stageout = open_stageout(site, f"restore by {by}"[:128])
    while moves and release_dead(site.ledger, limit=AT_ONCE, now=now):
        pass
    yield from _copies_of_unsent(stageout, now, since=since, moves=moves)
    columns = stageout_transfers.c
    running = [state.value for state in _T if state not in TRANSFER_ENDED and state not in _UNSENT]
    query = select(columns.state, func.count()).where(columns.state.in_(running)).group_by(columns.state)
    with reading(site.ledger) as connection:
        for state, count in connection.execute(query):
            what = f"{count} are {state} in the ledger: their component asks FTS and the storages"
            yield RestoreLine(RestoreOutcome.COMPARED, "transfers", what)
    for finding in take_census(stageout, now=lambda: now, deletes=False).findings[: 5 * SHOWN]:
        repaired = finding.outcome is FindingOutcome.REPAIRED
        outcome = RestoreOutcome.RECONCILED if repaired else RestoreOutcome.DECIDE
        subject = finding.name or (f"transfer {finding.transfer}" if finding.transfer else f"job {finding.job}")
        yield RestoreLine(outcome, f"{finding.site}: {subject}" if finding.site else subject, finding.reason)


def _copies_of_unsent(stageout: Stageout, now: datetime, *, since: datetime, moves: bool) -> Iterator[RestoreLine]:
    """Transfers that were sent after the backup, as their copies show: they are not sent again."""
    existing = shown = absent = 0
    for rows in _unsent(stageout.ledger):
        groups: defaultdict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
        for row in rows:
            groups[row.destination, row.owner].append(row)
        for (name, owner), of_site in groups.items():
            try:
                names = [row.destination_name for row in of_site]
                answers = stageout.place(name, owner).look(names, checksum=ChecksumMode.NONE)
            except NightshiftError as error:
                what = f"{len(of_site)} transfers of {owner} that were not sent cannot be compared: {error}"
                yield RestoreLine(RestoreOutcome.DECIDE, name, what)
                continue
            copied, written_at = list[Row[Any]](), dict[int, datetime]()
            for row in of_site:
                answer = answers[row.destination_name]
                # without a sum, the old file of a task that replaces it would be taken for the new one
                again = row.may_overwrite and row.checksum is None
                if isinstance(answer, FileFacts) and row.size in (None, answer.size) and not again:
                    copied.append(row)
                    written_at[row.id] = answer.modified or since
                elif answer is not None and not again:
                    what = f"transfer {row.id}: its destination is another file, or cannot be compared"
                    yield RestoreLine(RestoreOutcome.DECIDE, name, what)
                else:
                    absent += 1
            if moves:
                adopted = [_adopted(row, written_at[row.id]) for row in copied]
                move_transfers(stageout.ledger, adopted, StageoutComponent.PERSON, now=now)
            existing += len(copied)
            yield from map(_line_of, copied[: max(0, SHOWN - shown)])
            shown += len(copied)
    if existing > SHOWN:
        what = f"{existing - SHOWN} more transfers whose copies exist"
        yield RestoreLine(RestoreOutcome.RECONCILED, "transfers", what)
    if absent:
        what = f"{absent} have no copy, or replace one, and are sent"
        yield RestoreLine(RestoreOutcome.COMPARED, "transfers", what)


def _line_of(row: Row[Any]) -> RestoreLine:
    what = f"transfer {row.id} is {row.state} in the ledger, and its copy exists: it is only verified"
    if row.checksum is None:
        what += "; the request has no checksum, so it ends as failed if its source was removed, although it is complete"
        return RestoreLine(RestoreOutcome.DECIDE, row.destination, what)
    return RestoreLine(RestoreOutcome.RECONCILED, row.destination, what)


def _adopted(row: Row[Any], copied_at: datetime) -> TransferMove:
    # as if FTS had found it there: what is not the file of the request is never taken for it
    failure = None if row.may_overwrite else TransferFailureClass.DESTINATION_EXISTS
    reason = "the ledger was restored from a backup, and the copy exists: it is compared with the request"
    return TransferMove(row.id, _T(row.state), _T.COPIED, reason, failure=failure, copied_at=copied_at)


def _unsent(bind: Bind) -> Iterator[Sequence[Row[Any]]]:
    transfers, queues = stageout_transfers.c, stageout_queues.c
    columns = (
        transfers.id, transfers.state, transfers.destination_name, transfers.size, transfers.may_overwrite,
        transfers.checksum, queues.owner, queues.destination,
    )  # fmt: skip
    query = select(*columns).join(stageout_queues, transfers.queue == queues.id).order_by(transfers.id).limit(AT_ONCE)
    query = query.where(transfers.state.in_([state.value for state in _UNSENT]))
    last = 0
    while True:
        with reading(bind) as connection:
            rows: Sequence[Row[Any]] = tuple(connection.execute(query.where(transfers.id > last)))
        if not rows:
            return
        last = rows[-1].id
        yield tuple(row for row in rows if not is_bare(row.destination_name))
