"""The census: it compares the ledger with itself, with FTS, with the destinations and with the temporary areas.

It moves no row: what it can repair is due again at once, and its component does the rest. Everything else it names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Table, null, select

from include.errors import NightshiftError
from include.fts.client import FtsClient
from include.fts.errors import JobUnknown
from include.fts.states import FailureReason
from include.ledger.acts import Act, ActKind, named, note_act
from include.ledger.engine import reading, writing
from include.settings.sites import ChecksumMode
from include.stageout.attempts.answers import HELD
from include.stageout.claims import due
from include.stageout.components.retry_manager import stray_files
from include.stageout.files import is_bare
from include.stageout.findings import CensusFinding, FindingKind, FindingOutcome, longest_in_state, record_findings
from include.stageout.moves import writes_text
from include.stageout.opening import Stageout
from include.stageout.requests import rows_in, update_rows
from include.stageout.retry import TransferFailureClass
from include.stageout.states import (
    JOB_ENDED,
    JOB_MOVES,
    TRANSFER_ENDED,
    TRANSFER_MOVES,
    StageoutComponent,
    TransferJobState,
    TransferState,
)
from include.stageout.tables import stageout_jobs, stageout_queues, stageout_transfers

CLAIM_OVER = timedelta(hours=1)
"""A row whose claim ended before that was not taken by any process since."""
FAR_AHEAD = timedelta(hours=13)
"""No component puts off a row for longer, but for the copies of earlier attempts."""
SETTLED = timedelta(hours=1)
"""A job that was changed later is the monitor's business."""
LEFT_BEHIND = timedelta(days=2)
"""For how long a job that ended in the ledger only is looked for at FTS."""
_T, _J, _K = TransferState, TransferJobState, FindingKind


@dataclass(frozen=True, slots=True)
class CensusLimits:
    """Limits of one census.

    `findings`: of each kind that are recorded; all are counted. `jobs`: that FTS is asked for. `copies`: that
    destinations are asked for; the oldest. `files`: of one user's temporary folder. `deletions`: of unknown files.
    """

    findings: int = 1000
    jobs: int = 5000
    copies: int = 5000
    files: int = 500_000
    deletions: int = 10_000


@dataclass(frozen=True, slots=True)
class CensusReport:
    """All findings counted by kind and outcome, and those that are recorded."""

    counts: Mapping[tuple[FindingKind, FindingOutcome], int]
    findings: tuple[CensusFinding, ...]


def take_census(
    stageout: Stageout, *, now: Callable[[], datetime], deletes: bool = False, limits: CensusLimits | None = None
) -> CensusReport:
    """Find what is stuck or does not fit, repair what is safe, and record it in place of what the last census found.

    `stageout`: ledger, settings, FTS and sites. `deletes`: whether unknown files are deleted at sites with
    `clean_unknown`; False: they are only named. `limits`: how much is taken.
    """
    limits, start = limits or CensusLimits(), now()
    parts: tuple[Iterable[CensusFinding], ...] = (
        _old_rows(stageout, stageout_transfers, limits, start),
        _old_rows(stageout, stageout_jobs, limits, start),
        _ended_claims(stageout, stageout_transfers, _open_transfers(), limits, start),
        _ended_claims(stageout, stageout_jobs, _open_jobs(), limits, start),
        _transfers_of_ended_jobs(stageout, limits, start),
        _held(stageout, limits),
        _jobs_at_fts(stageout, limits, start),
        _copies(stageout, limits),
        stray_files(stageout, now=start, deletes=deletes, files=limits.files, deletions=limits.deletions),
    )
    counts = Counter[tuple[FindingKind, FindingOutcome]]()
    kept: defaultdict[FindingKind, list[CensusFinding]] = defaultdict(list)
    for part in parts:
        for finding in part:
            counts[finding.kind, finding.outcome] += 1
            if len(kept[finding.kind]) < limits.findings:
                kept[finding.kind].append(finding)
    findings = tuple(finding for some in kept.values() for finding in some)
    record_findings(stageout.ledger, findings, now=start)
    _note_deletions(stageout, counts, findings, start, deletes=deletes)
    return CensusReport(dict(counts), findings)


def _note_deletions(
    stageout: Stageout,
    counts: Mapping[tuple[FindingKind, FindingOutcome], int],
    findings: Sequence[CensusFinding],
    now: datetime,
    *,
    deletes: bool,
) -> None:
    """Record for the audit which unknown files were deleted or, without `deletes`, would be."""
    outcome = FindingOutcome.DELETED if deletes else FindingOutcome.DELETABLE
    if count := counts[FindingKind.UNKNOWN_FILE, outcome]:
        names = named(f"{finding.site}: {finding.name}" for finding in findings if finding.outcome is outcome)
        why = f"no transfer names them, and they are older than {stageout.settings.unknown_days} days"
        act = Act(now, ActKind.CENSUS, f"{count} files: {names}", stageout.worker.name, why, dry_run=not deletes)
        note_act(stageout.ledger, act)


# -- the ledger with itself


def _old_rows(stageout: Stageout, table: Table, limits: CensusLimits, now: datetime) -> Iterator[CensusFinding]:
    kind = _T if table is stageout_transfers else _J
    for state, longest in longest_in_state(stageout.settings).items():
        if not isinstance(state, kind):
            continue
        writes = table.c.may_write_until if table is stageout_transfers else null().label("may_write_until")
        columns = select(table.c.id, table.c.moved_at, table.c.due_at, table.c.claimed_by, writes)
        query = columns.where(table.c.state == state.value, table.c.moved_at < now - longest)
        with reading(stageout.ledger) as connection:
            rows = connection.execute(query.order_by(table.c.moved_at).limit(limits.findings)).all()
        held = {row.id: writes_text(row.may_write_until) for row in rows if (row.may_write_until or now) > now}
        far = [row.id for row in rows if row.due_at > now + FAR_AHEAD and row.id not in held]
        ahead = _make_due(stageout, table, far, state, now)
        for row in rows:
            since = f"{state.value} since {row.moved_at:%Y-%m-%d %H:%M} UTC"
            if row.id in ahead:
                what = f"{since}, and due only at {row.due_at:%Y-%m-%d %H:%M} UTC"
                yield replace(_about(table, row.id, _K.OLD_STATE, what), outcome=FindingOutcome.REPAIRED)
            else:
                yield _about(table, row.id, _K.OLD_STATE, f"{since}; {held.get(row.id, f'{_whose(state)} moves it')}")


def _ended_claims(
    stageout: Stageout,
    table: Table,
    states: Sequence[TransferState | TransferJobState],
    limits: CensusLimits,
    now: datetime,
) -> Iterator[CensusFinding]:
    for state in states:
        query = select(table.c.id, table.c.due_at, table.c.claimed_by)
        query = query.where(*due(table, state, now - CLAIM_OVER), table.c.claim.is_not(None))
        with reading(stageout.ledger) as connection:
            rows = connection.execute(query.order_by(table.c.due_at).limit(limits.findings)).all()
        for row in rows:
            ended = f"the claim of {row.claimed_by} ended at {row.due_at:%Y-%m-%d %H:%M} UTC"
            yield _about(table, row.id, _K.CLAIM_OVER, f"{state.value}; {ended}, and {_whose(state)} did not take it")


def _transfers_of_ended_jobs(stageout: Stageout, limits: CensusLimits, now: datetime) -> Iterator[CensusFinding]:
    transfers, jobs = stageout_transfers.c, stageout_jobs.c
    waiting = [state.value for state in (_T.SUBMITTED, _T.ACTIVE, _T.KILLING)]
    ended = jobs.state.in_([state.value for state in JOB_ENDED]) & (jobs.moved_at < now - SETTLED)
    query = (
        select(transfers.id, transfers.state, transfers.job, jobs.fts_id, jobs.state.label("job_state"))
        .outerjoin(stageout_jobs, transfers.job == jobs.id)
        .where(transfers.state.in_(waiting), transfers.moved_at < now - SETTLED)
        .where(jobs.id.is_(None) | ended)
        .limit(limits.findings)
    )
    with reading(stageout.ledger) as connection:
        rows = connection.execute(query).all()
    for row in rows:
        # a kill of a transfer that is in no job waits for its submitter
        what = f"its job {row.fts_id} is {row.job_state}" if row.job is not None else "it is in no job"
        yield CensusFinding(_K.JOB_OVER, f"{row.state}, but {what}", transfer=row.id, job=row.job)


def _held(stageout: Stageout, limits: CensusLimits) -> Iterator[CensusFinding]:
    columns = stageout_transfers.c
    states = [state.value for state in (_T.NEW, _T.SUBMITTED, _T.ACTIVE, _T.KILLING)]
    banned = columns.state.in_(states) & columns.reason.startswith(HELD)
    # tried again, and refused in the same way
    refused = (columns.state == _T.RETRY_WAIT.value) & (columns.failure == TransferFailureClass.PERMISSION.value)
    query = select(columns.id, columns.state, columns.reason).order_by(columns.id).limit(limits.findings)
    with reading(stageout.ledger) as connection:
        rows = [row for which in (banned, refused) for row in connection.execute(query.where(which))]
    for row in rows:
        yield CensusFinding(_K.HELD, f"{row.state}; {row.reason}", transfer=row.id)


# -- the ledger with FTS


def _jobs_at_fts(stageout: Stageout, limits: CensusLimits, now: datetime) -> Iterator[CensusFinding]:
    jobs, queues = stageout_jobs.c, stageout_queues.c
    columns = (jobs.id, jobs.fts_id, jobs.server, jobs.state, jobs.due_at)
    query = (
        select(*columns, queues.owner, queues.source, queues.destination)
        .join(stageout_queues, jobs.queue == queues.id)
        .where(jobs.moved_at < now - SETTLED)
        .order_by(jobs.due_at)
        .limit(limits.jobs)
    )
    running = query.where(jobs.state.in_([state.value for state in _open_jobs()]))
    # what FTS did not say itself
    given_up = query.where(
        jobs.state.in_([state.value for state in (_J.LOST, _J.DEAD, _J.REFUSED)]), jobs.moved_at > now - LEFT_BEHIND
    )
    groups: defaultdict[tuple[str, str, str, str], list[Row[Any]]] = defaultdict(list)
    with reading(stageout.ledger) as connection:
        for row in [*connection.execute(running), *connection.execute(given_up)]:
            groups[row.server, row.owner, row.source, row.destination].append(row)
    for (server, *whose), rows in groups.items():
        try:
            client = stageout.fts(server, *whose)
            yield from _asked(stageout, client, rows, now)
        except NightshiftError as error:
            yield CensusFinding(_K.SERVER_UNASKED, f"{len(rows)} jobs of {whose[0]} at {server}: {error}")


def _asked(stageout: Stageout, client: FtsClient, rows: Sequence[Row[Any]], now: datetime) -> Iterator[CensusFinding]:
    """Yield what FTS reports of jobs that have not changed in the ledger for some time."""
    answers = client.status([row.fts_id for row in rows], files=())
    for row in rows:
        ended, status = _J(row.state) in JOB_ENDED, answers.jobs.get(row.fts_id)
        if status is not None and status.job_state.terminal is not ended:
            kind = _K.JOB_RUNS if ended else _K.JOB_ENDED
            yield _job(stageout, kind, row, f"FTS has {status.job_state.value}", now)
        elif not ended and isinstance(answers.errors.get(row.fts_id), JobUnknown):
            kind, detail = _K.JOB_ENDED, "FTS has it only in its archive"
            try:
                client.archived(row.fts_id)
            except JobUnknown:
                kind, detail = _K.JOB_UNKNOWN, "FTS: neither it nor its archive knows it"
            yield _job(stageout, kind, row, detail, now)


def _job(stageout: Stageout, kind: FindingKind, row: Row[Any], detail: str, now: datetime) -> CensusFinding:
    """A job that FTS sees in another way; the monitor is to ask for it now."""
    finding = CensusFinding(kind, f"job {row.fts_id} is {row.state}; {detail}", job=row.id)
    early = row.due_at > now and _J(row.state) not in JOB_ENDED
    repaired = early and _make_due(stageout, stageout_jobs, [row.id], _J(row.state), now)
    return replace(finding, outcome=FindingOutcome.REPAIRED) if repaired else finding


# -- the ledger with the destinations


def _copies(stageout: Stageout, limits: CensusLimits) -> Iterator[CensusFinding]:
    """Copies of transfers that are verified but not complete: their sources still exist."""
    transfers, queues = stageout_transfers.c, stageout_queues.c
    columns = (transfers.id, transfers.state, transfers.destination_name, transfers.size)
    verified = [state.value for state in (_T.DONE, _T.REGISTERED, _T.CLEANING)]
    query = (
        select(*columns, queues.owner, queues.destination)
        .join(stageout_queues, transfers.queue == queues.id)
        .where(transfers.state.in_(verified))
        .order_by(transfers.due_at)
        .limit(limits.copies)
    )
    groups = defaultdict[tuple[str, str], list[Any]](list)
    with reading(stageout.ledger) as connection:
        for row in connection.execute(query):
            if not is_bare(row.destination_name):
                groups[row.destination, row.owner].append(row)
    for (site, owner), rows in groups.items():
        yield from _copies_at(stageout, site, owner, rows)


def _copies_at(stageout: Stageout, site: str, owner: str, rows: Sequence[Row[Any]]) -> Iterator[CensusFinding]:
    try:
        names = [row.destination_name for row in rows]
        answers = stageout.place(site, owner).look(names, checksum=ChecksumMode.NONE)
    except NightshiftError as error:
        yield CensusFinding(_K.SITE_UNASKED, f"{len(rows)} copies of {owner}: {error}", site=site)
        return
    refusals = [answer for answer in answers.values() if isinstance(answer, FailureReason)]
    if refusals:
        yield CensusFinding(_K.SITE_UNASKED, f"{len(refusals)} copies of {owner}: {refusals[0].text}", site=site)
    for row in rows:
        answer = answers[row.destination_name]
        about = {"site": site, "transfer": row.id, "name": row.destination_name, "bytes": row.size}
        if answer is None:
            text = f"{row.state}, but the copy does not exist any more; the source is kept"
            yield CensusFinding(_K.COPY_MISSING, text, **about)
        elif not isinstance(answer, FailureReason) and row.size not in (None, answer.size):
            text = f"{row.state}, but the copy has {answer.size} bytes; the source is kept"
            yield CensusFinding(_K.COPY_DIFFERS, text, **about)


# -- repairs


def _make_due(
    stageout: Stageout, table: Table, ids: Sequence[int], state: TransferState | TransferJobState, now: datetime
) -> frozenset[int]:
    """Make rows that no process has claimed due at once; those that were."""

    def work(connection: Connection) -> frozenset[int]:
        query = select(table.c.id).where(table.c.state == state.value, table.c.claim.is_(None)).with_for_update()
        free = frozenset(row.id for row in rows_in(connection, query, table.c.id, ids))
        update_rows(connection, table, free, {"due_at": now})
        return free

    return writing(stageout.ledger, work) if ids else frozenset()


def _about(table: Table, number: int, kind: FindingKind, reason: str) -> CensusFinding:
    if table is stageout_transfers:
        return CensusFinding(kind, reason, transfer=number)
    return CensusFinding(kind, reason, job=number)


def _whose(state: TransferState | TransferJobState) -> str:
    """Return who moves rows of a state."""
    moves = TRANSFER_MOVES if isinstance(state, TransferState) else JOB_MOVES
    movers = {rule.component for (current, _), rule in moves.items() if current is state}
    return "the " + " or the ".join(sorted(mover.value for mover in movers - {StageoutComponent.PERSON}))


def _open_transfers() -> list[TransferState]:
    return sorted({current for current, _ in TRANSFER_MOVES} - TRANSFER_ENDED, key=lambda state: state.value)


def _open_jobs() -> list[TransferJobState]:
    return sorted({current for current, _ in JOB_MOVES} - JOB_ENDED, key=lambda state: state.value)
