"""Transfers and jobs that wait for a ban or a missing right: their reason says so, while their state stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, Table, select, update

from include.ledger.engine import Bind, reading, writing
from include.stageout.requests import pieces
from include.stageout.retry import MAX_REASON_CHARACTERS
from include.stageout.states import TransferState
from include.stageout.tables import stageout_jobs, stageout_transfers

HELD = "held: "
"""Begins the reason of what is held."""
MOST_NOTED = 5000
"""Transfers of a queue that one batch of the submitter writes to; the next one goes on."""
_ENDED = "held no more: FTS answers"
_T = TransferState


def note_held_queue(bind: Bind, queue: int, why: str) -> None:
    """Write on the new transfers of a queue why they are not submitted."""
    columns = stageout_transfers.c
    _write(bind, stageout_transfers, [columns.state == _T.NEW.value, columns.queue == queue], f"{HELD}{why}")


def note_held_jobs(bind: Bind, jobs: Collection[int], why: str) -> None:
    """Write on jobs, and on their transfers, why FTS says nothing of them."""
    for piece in pieces(sorted(jobs)):
        _write(bind, stageout_jobs, [stageout_jobs.c.id.in_(piece)], f"{HELD}{why}")
        _write(bind, stageout_transfers, _at_fts(piece), f"{HELD}{why}")


def end_held_jobs(bind: Bind, jobs: Collection[int]) -> None:
    """Take that back: FTS has said something of the jobs."""
    columns = stageout_jobs.c
    for piece in pieces(sorted(jobs)):
        with reading(bind) as connection:
            query = select(columns.id).where(columns.id.in_(piece), columns.reason.startswith(HELD))
            held = list(connection.scalars(query))
        if held:
            _write(bind, stageout_jobs, [columns.id.in_(held)], _ENDED)
            _write(bind, stageout_transfers, _at_fts(held), _ENDED)


def _at_fts(jobs: Sequence[int]) -> list[ColumnElement[bool]]:
    columns = stageout_transfers.c
    states = [state.value for state in (_T.SUBMITTED, _T.ACTIVE, _T.KILLING)]
    return [columns.job.in_(jobs), columns.state.in_(states)]


def _write(bind: Bind, table: Table, where: Sequence[ColumnElement[bool]], text: str) -> None:
    """Write a reason to the rows that do not have it."""
    reason = text[:MAX_REASON_CHARACTERS]

    def work(connection: Connection) -> None:
        query = select(table.c.id).where(*where, table.c.reason != reason).limit(MOST_NOTED)
        for piece in pieces(list(connection.scalars(query))):
            connection.execute(update(table).where(table.c.id.in_(piece), *where).values(reason=reason))

    writing(bind, work)
