"""What has ended leaves the tables that are searched for work; the archive has each transfer with its history."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from include.ledger.engine import Bind, reading, writing
from include.stageout.claims import due, lock_oldest
from include.stageout.errors import MOVE_REFUSED
from include.stageout.requests import AT_ONCE
from include.stageout.states import JOB_ENDED, TRANSFER_ENDED, TransferJobState, TransferState
from include.stageout.tables import (
    stageout_archive,
    stageout_jobs,
    stageout_moves,
    stageout_queues,
    stageout_requests,
    stageout_transfers,
)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """What the history has of a move."""

    before: str
    state: str
    component: str
    reason: str
    moved_at: datetime

    @classmethod
    def from_row(cls, row: Row[Any]) -> MoveRecord:
        """From a row of the table of moves."""
        return cls(row.state_before, row.state, row.component, row.reason, row.moved_at)

    def to_json(self) -> dict[str, str]:
        """As the archive has it."""
        return {**asdict(self), "moved_at": self.moved_at.isoformat()}

    @classmethod
    def from_json(cls, document: Mapping[str, str]) -> MoveRecord:
        """The reverse of `to_json`."""
        return cls(**{**document, "moved_at": datetime.fromisoformat(document["moved_at"])})  # type: ignore[arg-type]


def history(bind: Bind, transfer: int) -> tuple[MoveRecord, ...]:
    """The moves of a transfer, archived or not, the oldest first; empty for one that was not moved yet."""
    columns = stageout_moves.c
    with reading(bind) as connection:
        rows = connection.execute(select(stageout_moves).where(columns.transfer == transfer).order_by(columns.id)).all()
        kept = select(stageout_archive.c.history).where(stageout_archive.c.id == transfer)
        text = None if rows else connection.scalar(kept)
    if text is not None:
        return tuple(MoveRecord.from_json(document) for document in json.loads(text))
    return tuple(MoveRecord.from_row(row) for row in rows)


def archive_transfers(bind: Bind, state: TransferState, *, before: datetime, limit: int) -> int:
    """Move transfers that ended in this state before a time to the archive, the oldest first, in one transaction.

    Their destinations are free again for other transfers.

    Args:
        bind: The ledger, or the caller's transaction.
        state: One of TRANSFER_ENDED. Failed and killed transfers can be resubmitted until they are archived.
        before: How long ago they ended, at least.
        limit: How many at most, up to 500.

    Returns:
        How many; less than the limit: there are no more.

    Raises:
        StageoutError: MOVE_REFUSED for a state in which transfers have not ended.
    """
    if state not in TRANSFER_ENDED:
        raise MOVE_REFUSED("transfer", f"what is {state.value} has not ended and is not archived")

    def work(connection: Connection) -> int:
        where = due(stageout_transfers, state, before)
        ids = lock_oldest(connection, stageout_transfers, where, min(limit, AT_ONCE))
        if ids:
            connection.execute(insert(stageout_archive), _archived(connection, ids))
            connection.execute(delete(stageout_moves).where(stageout_moves.c.transfer.in_(ids)))
            connection.execute(delete(stageout_transfers).where(stageout_transfers.c.id.in_(ids)))
        return len(ids)

    return writing(bind, work)


def forget_jobs(bind: Bind, state: TransferJobState, *, before: datetime, limit: int) -> int:
    """Delete FTS jobs that ended in this state before a time and whose transfers are archived; returns how many.

    The archive has the FTS id of each transfer's last job.

    Raises:
        StageoutError: MOVE_REFUSED for a state in which jobs have not ended.
    """
    if state not in JOB_ENDED:
        raise MOVE_REFUSED("FTS job", f"what is {state.value} has not ended and is not deleted")
    columns = stageout_jobs.c
    used = select(stageout_transfers.c.id).where(stageout_transfers.c.job == columns.id).exists()

    def work(connection: Connection) -> int:
        ids = lock_oldest(connection, stageout_jobs, [*due(stageout_jobs, state, before), ~used], min(limit, AT_ONCE))
        if ids:
            connection.execute(delete(stageout_moves).where(stageout_moves.c.job.in_(ids)))
            connection.execute(delete(stageout_jobs).where(columns.id.in_(ids)))
        return len(ids)

    return writing(bind, work)


def _archived(connection: Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    moves: defaultdict[int, list[dict[str, str]]] = defaultdict(list)
    columns = stageout_moves.c
    for row in connection.execute(select(stageout_moves).where(columns.transfer.in_(ids)).order_by(columns.id)):
        moves[row.transfer].append(MoveRecord.from_row(row).to_json())
    names = set(stageout_archive.columns.keys()) & set(stageout_transfers.columns.keys())
    query = (
        select(
            *(stageout_transfers.c[name] for name in sorted(names)),
            stageout_queues.c.owner, stageout_queues.c.source, stageout_queues.c.destination,
            stageout_requests.c.workflow, stageout_jobs.c.fts_id,
        )
        .join(stageout_queues, stageout_transfers.c.queue == stageout_queues.c.id)
        .join(stageout_requests, stageout_transfers.c.request == stageout_requests.c.id)
        .outerjoin(stageout_jobs, stageout_transfers.c.job == stageout_jobs.c.id)
        .where(stageout_transfers.c.id.in_(ids))
    )  # fmt: skip
    rows = connection.execute(query).mappings()
    return [{**row, "history": json.dumps(moves[row["id"]])} for row in rows]
