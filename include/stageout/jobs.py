"""FTS jobs in the ledger: each is recorded, with the id that FTS will give it, before its request is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection, insert, select, update

from include.ledger.acts import Act, ActKind, note_act
from include.ledger.engine import Bind, reading, writing
from include.stageout.attempts.answers import copy_time, seen_to_copy
from include.stageout.claims import StageoutWorker
from include.stageout.errors import MOVE_REFUSED
from include.stageout.moves import TransferJobMove, TransferMove, move_jobs, move_transfers, note_writing, writes_text
from include.stageout.requests import Transfer, TransferAtFts, columns_of, from_rows, rows_in, update_rows
from include.stageout.retry import MAX_REASON_CHARACTERS
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_queues, stageout_transfers

T = TypeVar("T", bound=TransferAtFts)


@dataclass(frozen=True, slots=True)
class NewTransferJob:
    """A job that is about to be submitted.

    Attributes:
        queue: The queue of its transfers.
        server: The connection id of the FTS server.
        sid: 32 hex digits, new for each attempt; FTS makes the id of it.
        fts_id: The id that FTS will give it.
        overwrites: Its files may replace what is at their destinations.
        tries: Submissions without a clear reply, of the job that its files were in before.
    """

    queue: int
    server: str
    sid: str
    fts_id: str
    overwrites: bool = False
    tries: int = 0


def record_job(
    bind: Bind, job: NewTransferJob, transfers: Sequence[int], worker: StageoutWorker, *, claim: str, now: datetime
) -> tuple[int | None, frozenset[int]]:
    """Record a job as submitting, and its transfers as being in it; the job has their claim.

    `transfers`: their ids; the caller has claimed them. `worker`: who claimed them. Another one takes the job when the
    claim has ended (`claim_jobs`). `claim`: the claim of the transfers. Returns the row of the job, and the transfers
    that are in it: not those whose claim is lost or that were killed. The request has only these. A claim that is
    lost for all of them makes no job: the row is then None.
    """
    columns = stageout_transfers.c
    values = {
        "sid": job.sid,
        "fts_id": job.fts_id,
        "server": job.server,
        "queue": job.queue,
        "overwrites": job.overwrites,
        "tries": job.tries,
        "state": TransferJobState.SUBMITTING.value,
        "reason": f"recorded by {worker.name}",
        "due_at": now + worker.keeps,
        "claim": claim,
        "claimed_by": worker.name,
        "created_at": now,
        "moved_at": now,
    }
    ours = (columns.claim == claim, columns.state == TransferState.CLAIMED.value, columns.job.is_(None))

    def work(connection: Connection) -> tuple[int | None, frozenset[int]]:
        query = select(columns.id).where(*ours).order_by(columns.id).with_for_update()
        taken = [row.id for row in rows_in(connection, query, columns.id, transfers)]
        if not taken:
            return None, frozenset()
        done = connection.execute(insert(stageout_jobs).values({**values, "files": len(taken)}))
        number = int(done.lastrowid)
        # a new attempt begins: what could write of earlier ones has ended
        changes = {"job": number, "due_at": now + worker.keeps, "may_write_until": None}
        update_rows(connection, stageout_transfers, taken, changes)
        return number, frozenset(taken)

    return writing(bind, work)


def note_unclear(
    bind: Bind,
    number: int,
    transfers: Sequence[int],
    claim: str,
    *,
    tries: int,
    wait: timedelta,
    reason: str,
    now: datetime,
) -> None:
    """Record that a submission had no clear reply, and end the claim of the job and its transfers.

    `tries`: how many submissions had none by now. `wait`: after how long the job is looked for. `reason`: what the user
    reads on each of its transfers. `now`: when the reply was due.
    """
    values = {"reason": reason[:MAX_REASON_CHARACTERS], "due_at": now + wait, "claim": None, "claimed_by": None}

    def work(connection: Connection) -> None:
        columns, ours = stageout_jobs.c, stageout_transfers.c
        row = (columns.id == number, columns.claim == claim)
        connection.execute(update(stageout_jobs).where(*row).values(tries=tries, **values))
        rows = (ours.claim == claim, ours.state == TransferState.CLAIMED.value)
        update_rows(connection, stageout_transfers, transfers, values, *rows)

    writing(bind, work)


def took_others(bind: Bind, server: str, since: datetime) -> bool:
    """Tell whether an FTS server took a job that was recorded at that time or later."""
    columns = stageout_jobs.c
    newest = select(columns.created_at).where(columns.server == server, columns.state.in_(_TAKEN))
    with reading(bind) as connection:
        created_at = connection.scalar(newest.order_by(columns.id.desc()).limit(1))
    return created_at is not None and created_at >= since


def transfers_of_jobs(
    bind: Bind,
    jobs: Sequence[int],
    kind: type[T],
    *,
    states: Collection[TransferState] = tuple(TransferState),
    claim: str | None = None,
) -> tuple[T, ...]:
    """The transfers that are in these jobs, by job and id.

    `states`: only transfers in one of them. `claim`: only transfers that have this claim; None: any.
    """
    columns = stageout_transfers.c
    query = select(*columns_of(kind, stageout_transfers)).where(columns.state.in_([state.value for state in states]))
    query = query.order_by(columns.job, columns.id)
    if kind is Transfer:
        query = query.join(stageout_queues, columns.queue == stageout_queues.c.id)
    if claim is not None:
        query = query.where(columns.claim == claim)
    with reading(bind) as connection:
        return from_rows(kind, rows_in(connection, query, columns.job, jobs))


def declare_dead(bind: Bind, fts_id: str, *, by: str, now: datetime, margin: timedelta) -> frozenset[int]:
    """Take a job for one that its FTS server does not run any more; its transfers are tried again, at no cost.

    Only a person can know that. Its copies may go on all the same: the next attempts begin, and kills are confirmed,
    when the time is over that a copy may take.

    `margin`: added to the longest time that a copy may take. Returns the ids of the transfers that moved. Raises
    StageoutError: MOVE_REFUSED if the ledger has no such job, or one that has ended, or while a process submits it.
    """
    reason = f"its FTS job was declared dead by {by}"

    def work(connection: Connection) -> frozenset[int]:
        columns = stageout_jobs.c
        query = select(columns.id, columns.state, columns.claim, columns.due_at, columns.overwrites)
        query = query.where(columns.fts_id == fts_id).with_for_update()
        row = connection.execute(query).first()
        if row is None:
            raise MOVE_REFUSED(f"FTS job {fts_id:.64}", "the ledger has no such job")
        if row.state == TransferJobState.SUBMITTING.value and row.claim is not None and row.due_at > now:
            # it would run at FTS beside the next attempt of its transfers
            until = f"{row.due_at:%H:%M:%S} UTC"
            raise MOVE_REFUSED(f"FTS job {fts_id:.64}", f"its request may be on its way until {until}")
        move = TransferJobMove(row.id, TransferJobState(row.state), TransferJobState.DEAD, f"declared dead by {by}")
        move_jobs(connection, [move], StageoutComponent.PERSON, now=now)
        moved: frozenset[int] = frozenset()
        rows = transfers_of_jobs(connection, [row.id], TransferAtFts, states=_AFTER_DEATH.keys())
        for state, (to, component) in _AFTER_DEATH.items():
            theirs = [transfer for transfer in rows if transfer.state is state]
            times = {transfer.id: now + copy_time(transfer.size) + margin for transfer in theirs}
            began = {transfer.id: seen_to_copy(transfer, overwrites=row.overwrites) for transfer in theirs}
            if to is None:
                note_writing(connection, times)
                continue
            moves = [
                TransferMove(number, state, to, f"{reason}; {writes_text(time)}", time - now, spends=False,
                             may_write_until=time, began_at=began[number])
                for number, time in times.items()
            ]  # fmt: skip
            moved |= move_transfers(connection, moves, component, now=now)
        return moved

    done = writing(bind, work)
    what = f"job {fts_id} at FTS, with {len(done)} transfers"
    note_act(bind, Act(now, ActKind.JOB_DEAD, what, by, "by request of a person"))
    return done


_TAKEN = [
    state.value for state in TransferJobState
    if state not in (TransferJobState.SUBMITTING, TransferJobState.REFUSED, TransferJobState.DEAD)
]  # fmt: skip
"""States of jobs that FTS has, or had."""
_AFTER_DEATH: Mapping[TransferState, tuple[TransferState | None, StageoutComponent]] = {
    TransferState.CLAIMED: (TransferState.NEW, StageoutComponent.SUBMITTER),
    TransferState.SUBMITTED: (TransferState.RETRY_WAIT, StageoutComponent.MONITOR),
    TransferState.ACTIVE: (TransferState.RETRY_WAIT, StageoutComponent.MONITOR),
    # the monitor ends the kill
    TransferState.KILLING: (None, StageoutComponent.MONITOR),
}
"""Where the transfers of a dead job go, and who moves them there; None: they stay."""
