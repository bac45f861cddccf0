"""Claims in the ledger: each component takes what is due, in batches, and no two processes take the same.

On MariaDB a claim locks its rows and skips those that others have locked; on SQLite writers wait for each other. Either
way it reads an index from the oldest due row on and stops after its batch. A claim ends with the move of its row, or by
itself at its time limit: then the row is due again. What a slower process does with it after that is refused, since its
claim is not that of the row any more.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, func, or_, select, update

from include.ledger.engine import Bind, reading, writing
from include.stageout.moves import TransferMove, move_claimed, move_transfers
from include.stageout.requests import Transfer, TransferJob, columns_of, from_rows, pieces, rows_in, update_rows
from include.stageout.retry import MAX_REASON_CHARACTERS
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_queues, stageout_transfers

LARGE = "0" * 32
"""The claim of copies that wait for the component that reads large files (`claim_large`)."""
BY_QUEUE = "ix_stageout_transfers_state_queue_due_at"
T = TypeVar("T", Transfer, TransferJob)


@dataclass(frozen=True, slots=True)
class StageoutWorker:
    """A process that claims: its name, for people, and how long it may keep what it has claimed."""

    name: str
    keeps: timedelta = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class ClaimedRows(Generic[T]):
    """Transfers or jobs as they are after the claim; moves of them name the claim."""

    claim: str
    rows: tuple[T, ...]


def waiting_queues(bind: Bind, *, now: datetime, after: int = 0, limit: int = 1000) -> list[int]:
    """The queues that have new transfers that are due, by number.

    `after`: only queues with a higher number: the last one of an earlier call.
    """
    columns = stageout_transfers.c
    new, oldest = TransferState.NEW.value, func.min(columns.due_at)
    query = select(columns.queue).with_hint(stageout_transfers, f"FORCE INDEX ({BY_QUEUE})", "mysql")
    # a range, although of one state: with `=` MariaDB sorts, with the range it reads one entry of the index a queue
    query = query.where(columns.state >= new, columns.state <= new, columns.queue > after)
    query = query.group_by(columns.state, columns.queue).having(oldest <= now)
    query = query.order_by(columns.state, columns.queue).limit(limit)
    with reading(bind) as connection:
        return list(connection.scalars(query))


def claim_queue(
    bind: Bind, queue: int, worker: StageoutWorker, *, limit: int, now: datetime, held: timedelta = timedelta()
) -> ClaimedRows[Transfer]:
    """Take new transfers of one queue for the submitter, the oldest first; their state is claimed then.

    `queue`: one of `waiting_queues`. `now`: what was due before it is taken. `held`: for how long a transfer has to
    have been due.
    """
    where = [*due(stageout_transfers, TransferState.NEW, now - held), stageout_transfers.c.queue == queue, at_rest(now)]
    move = (TransferState.NEW, TransferState.CLAIMED, StageoutComponent.SUBMITTER)

    def work(connection: Connection) -> ClaimedRows[Transfer]:
        ids = lock_oldest(connection, stageout_transfers, where, limit, BY_QUEUE)
        return _take_moved(connection, ids, worker, now, move, f"claimed by {worker.name}")

    return writing(bind, work)


def claim_registered(bind: Bind, worker: StageoutWorker, *, limit: int, now: datetime) -> ClaimedRows[Transfer]:
    """Take registered transfers for the cleaner; their state is cleaning then."""
    move = (TransferState.REGISTERED, TransferState.CLEANING, StageoutComponent.CLEANER)

    def work(connection: Connection) -> ClaimedRows[Transfer]:
        ids = lock_oldest(connection, stageout_transfers, due(stageout_transfers, move[0], now), limit)
        return _take_moved(connection, ids, worker, now, move, "registered")

    return writing(bind, work)


def claim_transfers(
    bind: Bind, state: TransferState, worker: StageoutWorker, *, limit: int, now: datetime
) -> ClaimedRows[Transfer]:
    """Take transfers that are due in a state, the oldest first, for the one component that waits for it."""

    def work(connection: Connection) -> ClaimedRows[Transfer]:
        ids = lock_oldest(connection, stageout_transfers, due(stageout_transfers, state, now), limit)
        return _take(connection, stageout_transfers, Transfer, ids, worker, now)

    return writing(bind, work)


def claim_jobs(
    bind: Bind, state: TransferJobState, worker: StageoutWorker, *, limit: int, now: datetime
) -> ClaimedRows[TransferJob]:
    """Take FTS jobs that are due in a state, the oldest first.

    A job that is due while it is submitting was left by a dead process: its transfers come with it, under the same
    claim.
    """
    columns = stageout_transfers.c

    def work(connection: Connection) -> ClaimedRows[TransferJob]:
        ids = lock_oldest(connection, stageout_jobs, due(stageout_jobs, state, now), limit)
        claimed = _take(connection, stageout_jobs, TransferJob, ids, worker, now)
        if state is TransferJobState.SUBMITTING:
            changes = _held(claimed.claim, worker, now)
            for piece in pieces(ids):
                theirs = (columns.job.in_(piece), columns.state == TransferState.CLAIMED.value)
                connection.execute(update(stageout_transfers).where(*theirs).values(changes))
        return claimed

    return writing(bind, work)


def at_rest(now: datetime) -> ColumnElement[bool]:
    """The condition that no copy of an earlier attempt of a transfer may write to its destination any more."""
    until = stageout_transfers.c.may_write_until
    return or_(until.is_(None), until <= now)


def keep_claim(
    bind: Bind, table: Table, ids: Collection[int], claim: str, worker: StageoutWorker, *, now: datetime
) -> frozenset[int]:
    """Let a claim last for as long again, for work that takes longer than one.

    `table`: that of transfers or of jobs. `ids`: the rows that the caller still works on. `now`: from when on. Returns
    the rows that the claim still has. What another process has by now is not the caller's to touch.
    """

    def work(connection: Connection) -> frozenset[int]:
        ours = select(table.c.id).where(table.c.claim == claim).order_by(table.c.id).with_for_update()
        kept = frozenset(row.id for row in rows_in(connection, ours, table.c.id, ids))
        update_rows(connection, table, kept, _held(claim, worker, now))
        return kept

    return writing(bind, work)


def look_again(
    bind: Bind,
    table: Table,
    waits: Mapping[int, timedelta],
    claim: str,
    *,
    now: datetime,
    reasons: Mapping[int, str] | None = None,
    to: str | None = None,
) -> None:
    """End a claim of rows that are not moved; each is due again after its wait.

    `table`: that of transfers or of jobs. `waits`: by the ids of the rows. Those that another claim has are left.
    `reasons`: why rows wait, where that is worth knowing. `to`: LARGE, whose component may take them meanwhile.
    """
    together: defaultdict[tuple[timedelta, str | None], list[int]] = defaultdict(list)
    for number, wait in waits.items():
        together[wait, (reasons or {}).get(number)].append(number)

    def work(connection: Connection) -> None:
        for (wait, reason), ids in together.items():
            values: dict[str, Any] = {"due_at": now + wait, "claim": to, "claimed_by": to and "read-back"}
            if reason is not None:
                values["reason"] = reason[:MAX_REASON_CHARACTERS]
            update_rows(connection, table, ids, values, table.c.claim == claim)

    writing(bind, work)


def claim_large(bind: Bind, worker: StageoutWorker, *, limit: int, now: datetime) -> ClaimedRows[Transfer]:
    """Take copies that were left to the component that reads large files, the oldest first."""
    columns = stageout_transfers.c
    where = [columns.state == TransferState.COPIED.value, columns.claim == LARGE]

    def work(connection: Connection) -> ClaimedRows[Transfer]:
        ids = lock_oldest(connection, stageout_transfers, where, limit)
        return _take(connection, stageout_transfers, Transfer, ids, worker, now)

    return writing(bind, work)


def release_dead(bind: Bind, *, limit: int, now: datetime) -> frozenset[int]:
    """Make new again what dead submitters had claimed and not put into a job.

    All other claims end by themselves; transfers of a job that was being submitted go with the job (`claim_jobs`).

    `now`: claims that ended before it are those of dead processes. Returns the ids of the transfers.
    """
    where = [*due(stageout_transfers, TransferState.CLAIMED, now), stageout_transfers.c.job.is_(None)]
    columns = stageout_transfers.c

    def work(connection: Connection) -> frozenset[int]:
        ids = lock_oldest(connection, stageout_transfers, where, limit)
        holders = connection.execute(select(columns.id, columns.claimed_by).where(columns.id.in_(ids)))
        moves = [
            TransferMove(row.id, TransferState.CLAIMED, TransferState.NEW, f"the claim of {row.claimed_by} ended")
            for row in holders
        ]
        return move_transfers(connection, moves, StageoutComponent.SUBMITTER, now=now)

    return writing(bind, work)


def due(table: Table, state: Enum, now: datetime) -> list[ColumnElement[bool]]:
    """Return what holds for the rows of a state that are due."""
    return [table.c.state == state.value, table.c.due_at <= now]


def lock_oldest(
    connection: Connection, table: Table, where: Sequence[ColumnElement[bool]], limit: int, index: str | None = None
) -> list[int]:
    """The ids of the rows that are due for the longest, locked until the transaction ends.

    `index`: the one to read; None: the one by state.
    """
    # without the hint a server with little statistics may sort, and lock, all rows of a state
    hint = f"FORCE INDEX ({index or f'ix_{table.name}_state_due_at'})"
    query = select(table.c.id).with_hint(table, hint, "mysql").where(*where)
    query = query.order_by(table.c.due_at).limit(limit).with_for_update(skip_locked=True)
    return list(connection.scalars(query))


def _take_moved(
    connection: Connection,
    ids: Sequence[int],
    worker: StageoutWorker,
    now: datetime,
    move: tuple[TransferState, TransferState, StageoutComponent],
    reason: str,
) -> ClaimedRows[Transfer]:
    claim = secrets.token_hex(16)
    move_claimed(connection, ids, move, reason, _held(claim, worker, now), now=now)
    return ClaimedRows(claim, _read(connection, stageout_transfers, Transfer, ids))


def _take(
    connection: Connection, table: Table, kind: type[T], ids: Sequence[int], worker: StageoutWorker, now: datetime
) -> ClaimedRows[T]:
    claim = secrets.token_hex(16)
    update_rows(connection, table, ids, _held(claim, worker, now))
    return ClaimedRows(claim, _read(connection, table, kind, ids))


def _read(connection: Connection, table: Table, kind: type[T], ids: Sequence[int]) -> tuple[T, ...]:
    query = select(*columns_of(kind, table)).join(stageout_queues, table.c.queue == stageout_queues.c.id)
    return from_rows(kind, rows_in(connection, query, table.c.id, ids))


def _held(claim: str, worker: StageoutWorker, now: datetime) -> dict[str, Any]:
    return {"claim": claim, "claimed_by": worker.name, "due_at": now + worker.keeps}
