"""Rows of the pages of transfers besides `include/stageout/status.py`. A request reads a bounded number of rows.

What has to read an entry of an index for each transfer runs beside the requests, and is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, and_, func, select, true

from include.ledger.engine import Bind, reading
from include.stageout.attempts.answers import HELD
from include.stageout.requests import pieces
from include.stageout.rest.remembered import RememberedCounts
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import waiting_since
from include.stageout.tables import (
    stageout_analytics,
    stageout_findings,
    stageout_jobs,
    stageout_queues,
    stageout_requests,
    stageout_transfers,
)

FAILURES = 2000
"""Transfers of each state that are read for the failure classes."""
NEWEST = 20_000
LATELY = timedelta(minutes=15)
"""The time from which a rate is taken."""
FINDINGS = 200
SHOWN_REASONS = 5
DAYS = 30
HOUR = timedelta(hours=1)
HOURS_KEPT_S = 6 * 3600.0
COMPLETE = (TransferState.CLEANED, TransferState.KEPT)
TROUBLED = (TransferState.FAILED, TransferState.RETRY_WAIT, TransferState.NEEDS_CREDENTIAL)
HOLDABLE = (TransferState.NEW, TransferState.SUBMITTED, TransferState.ACTIVE)


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Transfers of one state whose last failure is of one class; `last`: when the newest of them moved."""

    failure: str | None
    state: TransferState
    files: int
    last: datetime


@dataclass(frozen=True, slots=True)
class EndedFiles:
    """Numbers of transfers that ended in an hour or on a day. `bytes`: unknown of hours."""

    at: datetime
    complete: int
    failed: int
    bytes: int | None = None


def oldest_due(bind: Bind, owner: str | None) -> dict[TransferState, datetime]:
    """Return, for each state that moves on by itself, the time from which a transfer is due."""
    if owner is None:
        return waiting_since(bind)
    columns = stageout_transfers.c
    states = [state.value for state in TransferState if state not in TRANSFER_ENDED]
    due: dict[TransferState, datetime] = {}
    with reading(bind) as connection:
        for where in _of_owner(connection, owner):
            query = select(columns.state, func.min(columns.due_at).label("due_at")).where(
                columns.state.in_(states), where
            )
            for row in connection.execute(query.group_by(columns.state)):
                state = TransferState(row.state)
                due[state] = min(due.get(state, row.due_at), row.due_at)
    return due


def failures(bind: Bind, owner: str | None, *, limit: int = FAILURES) -> list[FailureCount]:
    """Transfers that failed or wait after a failure by class, the newest of each state."""
    counts: list[FailureCount] = []
    with reading(bind) as connection:
        for state in TROUBLED:
            classes: dict[str | None, list[datetime]] = {}
            for row in _newest(connection, state, owner, limit):
                classes.setdefault(row.failure, []).append(row.moved_at)
            counts += [FailureCount(name, state, len(times), max(times)) for name, times in classes.items()]
    return sorted(counts, key=lambda row: (-row.files, row.failure or "", row.state.value))


def _newest(connection: Connection, state: TransferState, owner: str | None, limit: int) -> Iterable[Row[Any]]:
    columns = stageout_transfers.c
    query = select(columns.failure, columns.moved_at).where(columns.state == state.value).limit(limit)
    if owner is None:
        hint = "FORCE INDEX (ix_stageout_transfers_state_due_at)"
        query = query.with_hint(stageout_transfers, hint, "mysql").order_by(columns.due_at.desc())
        return connection.execute(query)
    rows: list[Row[Any]] = []
    for where in _of_owner(connection, owner):
        rows += connection.execute(query.where(where))
    return rows[:limit]


def held(bind: Bind, owner: str | None, *, limit: int = FINDINGS) -> list[tuple[str, int]]:
    """Return the reasons of transfers that wait for a ban or a right, with their numbers, the longest due first."""
    columns = stageout_transfers.c
    counts = Counter[str]()
    with reading(bind) as connection:
        whose = _of_owner(connection, owner)
        # of a user sorted from own queues: the index in the order of time has the transfers of all users
        order = columns.due_at if owner is None else func.coalesce(columns.due_at, columns.due_at)
        for state in HOLDABLE:
            first = select(columns.id).where(columns.state == state.value).order_by(order).limit(limit)
            for where in whose:
                ids = first.where(where).subquery()
                reasons = connection.scalars(select(columns.reason).join(ids, ids.c.id == columns.id))
                counts.update(reason for reason in reasons if reason.startswith(HELD))
    return counts.most_common(SHOWN_REASONS)


def findings(
    bind: Bind, owner: str | None, kind: str | None = None, *, limit: int = FINDINGS
) -> tuple[dict[str, int], Sequence[Row[Any]]]:
    """Return the findings of the last census: numbers by kind, and findings of that kind, those of transfers first.

    For a user only what is about own transfers.
    """
    columns = stageout_findings.c
    whose = true() if owner is None else stageout_queues.c.owner == owner
    counts = select(columns.kind, func.count().label("findings")).group_by(columns.kind).order_by(columns.kind)
    shown = select(stageout_findings).order_by(columns.transfer.is_(None), columns.id).limit(limit)
    if owner is not None:
        counts, shown = _with_queues(counts), _with_queues(shown)
    if kind is not None:
        shown = shown.where(columns.kind == kind)
    with reading(bind) as connection:
        numbers = {row.kind: row.findings for row in connection.execute(counts.where(whose))}
        return numbers, connection.execute(shown.where(whose)).all()


def _with_queues(query: Select[Any]) -> Select[Any]:
    query = query.join(stageout_transfers, stageout_transfers.c.id == stageout_findings.c.transfer)
    return query.join(stageout_queues, stageout_queues.c.id == stageout_transfers.c.queue)


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Transfers of a link that are held, wait after a failure or failed, for one class of failures.

    `reason`: that of one of them.
    """

    source: str
    destination: str
    state: TransferState
    failure: str | None
    reason: str
    files: int


def waiting_groups(bind: Bind, owner: str, workflow: str, *, limit: int = FAILURES) -> list[WaitingGroup]:
    """Return what keeps the transfers of a workflow from their end, those with most files first.

    `limit`: transfers of each state that are read; those that only wait for their turn are not among the groups.
    """
    columns, requests, queues = stageout_transfers.c, stageout_requests.c, stageout_queues.c
    query = select(queues.source, queues.destination, columns.failure, columns.reason)
    query = query.join_from(stageout_transfers, stageout_queues, columns.queue == queues.id)
    query = query.with_hint(stageout_transfers, "FORCE INDEX (ix_stageout_transfers_request_state_queue)", "mysql")
    of_workflow = select(requests.id).where(requests.owner == owner, requests.workflow == workflow)
    files, reasons = Counter[tuple[str, str, TransferState, str | None]](), {}
    with reading(bind) as connection:
        ids = connection.scalars(of_workflow).all()
        for state in (*TROUBLED, *HOLDABLE):
            left = limit
            # by request and one state: only then both databases take the index that has the two
            for piece in pieces(ids):
                some = query.where(columns.request.in_(piece), columns.state == state.value).limit(left)
                read = connection.execute(some).all()
                for row in read:
                    if state in TROUBLED or row.reason.startswith(HELD):
                        key = (row.source, row.destination, state, row.failure)
                        files[key] += 1
                        reasons[key] = row.reason
                left -= len(read)
                if not left:
                    break
    return [WaitingGroup(*key, reasons[key], number) for key, number in files.most_common()]


def ended_lately(bind: Bind, owner: str, workflow: str, *, now: datetime, limit: int = NEWEST) -> tuple[int, timedelta]:
    """Return how many transfers of a workflow became complete lately, and within which time before now.

    `limit`: transfers of all users that are read at most, the newest ones of the last `LATELY`.
    """
    columns, requests = stageout_transfers.c, stageout_requests.c
    states = [state.value for state in COMPLETE]
    # what has ended is due from its end on
    newest = select(columns.request, columns.due_at).where(columns.state.in_(states), columns.due_at >= now - LATELY)
    rows = newest.order_by(columns.due_at.desc()).limit(limit).subquery()
    own = and_(requests.id == rows.c.request, requests.owner == owner, requests.workflow == workflow)
    query = select(func.count(requests.id), func.count(), func.min(rows.c.due_at))
    with reading(bind) as connection:
        files, read, first = connection.execute(query.select_from(rows).outerjoin(stageout_requests, own)).one()
    return files, LATELY if read < limit else now - first


def hours(
    ledger: Engine, remembered: RememberedCounts, owner: str | None, *, now: datetime, count: int
) -> tuple[EndedFiles, ...]:
    """Transfers by the hour of their end, the oldest first, of so many hours; an hour that is over is counted once."""
    this = now.replace(minute=0, second=0, microsecond=0)
    rows = []
    for number in range(count - 1, -1, -1):
        hour = this - number * HOUR
        kept_s = HOURS_KEPT_S if number > 1 else 0.0
        rows.append(remembered(("hour", owner, hour), lambda hour=hour: _hour(ledger, owner, hour), kept_s=kept_s))  # type: ignore[misc]
    return tuple(rows)


def _hour(ledger: Engine, owner: str | None, hour: datetime) -> EndedFiles:
    columns, counts = stageout_transfers.c, Counter[str]()
    # what has ended is due from its end on
    states = [state.value for state in (*COMPLETE, TransferState.FAILED)]
    within = (columns.state.in_(states), columns.due_at >= hour, columns.due_at < hour + HOUR)
    query = select(columns.state, func.count().label("files")).where(*within).group_by(columns.state)
    with reading(ledger) as connection:
        for where in _of_owner(connection, owner):
            counts.update({row.state: row.files for row in connection.execute(query.where(where))})
    return EndedFiles(hour, sum(counts[state.value] for state in COMPLETE), counts[TransferState.FAILED.value])


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Files of a link that became complete lately. `minutes`: files and bytes by the minute of their end."""

    source: str
    destination: str
    files: int
    bytes: int
    minutes: Mapping[datetime, tuple[int, int]]


def link_rates(
    bind: Bind, owner: str | None, *, now: datetime, limit: int = NEWEST
) -> tuple[tuple[LinkRate, ...], datetime]:
    """Return what became complete in the last hour by link, the most files first, and since when that is counted.

    `limit`: transfers that are read at most of each state, the newest ones.
    """
    columns, since = stageout_transfers.c, now - HOUR
    ended: list[Row[Any]] = []
    with reading(bind) as connection:
        whose = _of_owner(connection, owner)
        for state in COMPLETE:
            # what has ended is due from its end on
            query = select(columns.queue, columns.due_at, columns.size).where(
                columns.state == state.value, columns.due_at >= now - HOUR, columns.due_at <= now
            )
            if owner is None:
                query = query.with_hint(stageout_transfers, "FORCE INDEX (ix_stageout_transfers_state_due_at)", "mysql")
            own: list[Row[Any]] = []
            for where in whose:
                own += connection.execute(query.where(where).order_by(columns.due_at.desc()).limit(limit))
            own = sorted(own, key=lambda row: row.due_at, reverse=True)[:limit]
            if len(own) == limit:
                since = max(since, own[-1].due_at)
            ended += own
        links: dict[int, tuple[str, str]] = {}
        of_queue = stageout_queues.c
        for piece in pieces(sorted({row.queue for row in ended})):
            named = select(of_queue.id, of_queue.source, of_queue.destination).where(of_queue.id.in_(piece))
            links |= {queue.id: (queue.source, queue.destination) for queue in connection.execute(named)}
    minutes: dict[tuple[str, str], dict[datetime, tuple[int, int]]] = {}
    for row in ended:
        if row.due_at >= since:
            by_minute, minute = minutes.setdefault(links[row.queue], {}), row.due_at.replace(second=0, microsecond=0)
            files, size = by_minute.get(minute, (0, 0))
            by_minute[minute] = files + 1, size + (row.size or 0)
    rates = [
        LinkRate(*link, sum(files for files, _ in times.values()), sum(size for _, size in times.values()), times)
        for link, times in minutes.items()
    ]
    return tuple(sorted(rates, key=lambda rate: (-rate.files, rate.source, rate.destination))), since


def days(bind: Bind, owner: str | None, *, now: datetime) -> tuple[EndedFiles, ...]:
    """Archived transfers by the day of their end, the oldest first, from their daily sums."""
    columns = stageout_analytics.c
    query = select(
        columns.day, columns.state, func.sum(columns.files).label("files"), func.sum(columns.bytes).label("bytes")
    ).where(columns.day >= now - timedelta(days=DAYS))
    if owner is not None:
        query = query.where(columns.owner == owner)
    sums: dict[datetime, dict[str, Any]] = {}
    with reading(bind) as connection:
        for row in connection.execute(query.group_by(columns.day, columns.state)):
            sums.setdefault(row.day, {})[row.state] = row
    complete = {state.value for state in COMPLETE}
    return tuple(
        EndedFiles(
            day,
            sum(int(row.files) for state, row in states.items() if state in complete),
            sum(int(row.files) for state, row in states.items() if state == TransferState.FAILED.value),
            sum(int(row.bytes) for state, row in states.items() if state in complete),
        )
        for day, states in sorted(sums.items())
    )


def server_of(bind: Bind, fts_id: str) -> str | None:
    """The connection of the FTS server that has a job; None: the job is not in the ledger any more."""
    query = select(stageout_jobs.c.server).where(stageout_jobs.c.fts_id == fts_id)
    with reading(bind) as connection:
        name: str | None = connection.scalar(query)
        return name


def _of_owner(connection: Connection, owner: str | None) -> list[ColumnElement[bool]]:
    """Yield conditions for the transfers of a user, in pieces that one statement takes each."""
    if owner is None:
        return [true()]
    queues = connection.scalars(select(stageout_queues.c.id).where(stageout_queues.c.owner == owner)).all()
    return [stageout_transfers.c.queue.in_(piece) for piece in pieces(queues)]
