"""The retry manager: what waits becomes new when its time has come; and what people do: resubmit and kill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, select, update

from include.fts.client.client import FtsClient
from include.fts.errors import FtsError
from include.ledger.engine import Bind, reading, writing
from include.stageout.attempts.queues import server_of
from include.stageout.claims import ClaimedRows, claim_transfers, look_again
from include.stageout.components.tools import Stageout
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.registration.blocks import close_workflow, note_killed
from include.stageout.requests import AT_ONCE, pieces
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_requests, stageout_transfers

SHORTEST_LOOK, LONGEST_LOOK = timedelta(minutes=1), timedelta(minutes=15)
"""Between two looks for a user's credential; the wait grows with the time that it is missing."""
_T, _J = TransferState, TransferJobState


@dataclass(frozen=True, slots=True)
class RetryReport:
    """What one batch of the retry manager did.

    Attributes:
        rows: Transfers that it took; 0: nothing is due.
        retried: Those that are new now.
        without_credential: Users whose credential is still missing, each with the reason.
    """

    rows: int
    retried: int
    without_credential: Mapping[str, str]


def retry_waiting(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> RetryReport:
    """Make new what has waited for long enough, and what waited for a credential that is there again; one batch.

    Args:
        stageout: Ledger, settings and clients.
        now: The clock, UTC.
        limit: Transfers of each kind that are taken at most.
    """
    ledger, worker = stageout.ledger, stageout.worker
    waited = claim_transfers(ledger, _T.RETRY_WAIT, worker, limit=limit, now=now())
    moves = [TransferMove(row.id, _T.RETRY_WAIT, _T.NEW, f"retry {row.retries}") for row in waited.rows]
    moved = move_transfers(ledger, moves, StageoutComponent.RETRY, now=now(), claim=waited.claim)
    without = claim_transfers(ledger, _T.NEEDS_CREDENTIAL, worker, limit=limit, now=now())
    usable, faults = _credentials(stageout, without.rows, now())
    moves = [TransferMove(row.id, _T.NEEDS_CREDENTIAL, _T.NEW, "the credential can be used") for row in usable]
    moved |= move_transfers(ledger, moves, StageoutComponent.RETRY, now=now(), claim=without.claim)
    _wait_on(stageout, without, {row.id for row in usable}, now())
    return RetryReport(len(waited.rows) + len(without.rows), len(moved), faults)


def _credentials(stageout: Stageout, rows: Sequence[Row[Any]], now: datetime) -> tuple[list[Row[Any]], dict[str, str]]:
    """The rows whose credential can be used, and why those of users cannot."""
    waiting: defaultdict[tuple[str, str, str], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        waiting[row.owner, row.source, row.destination].append(row)
    usable: list[Row[Any]] = []
    faults: dict[str, str] = {}
    clients: dict[FtsClient, FtsError | None] = {}
    for (owner, *link), theirs in waiting.items():
        try:
            client = stageout.fts(server_of((link[0], link[1]), stageout.settings.fts), owner, *link)
        except FtsError as error:
            faults[owner] = str(error)
            continue
        if client not in clients:
            clients[client] = _fault(client, now)
        fault = clients[client]
        if fault is None:
            usable += theirs
        else:
            faults[owner] = str(fault)
    return usable, faults


def _fault(client: FtsClient, now: datetime) -> FtsError | None:
    """Why the server cannot act for the client's identity; None: it can."""
    try:
        client.renew_credential(now=now)
    except FtsError as error:
        return error
    return None


def _wait_on(stageout: Stageout, claimed: ClaimedRows, usable: Collection[int], now: datetime) -> None:
    waits = {
        row.id: min(max((now - row.moved_at) / 4, SHORTEST_LOOK), LONGEST_LOOK)
        for row in claimed.rows if row.id not in usable
    }  # fmt: skip
    # whole minutes: few different waits are few statements
    rounded = {number: timedelta(minutes=round(wait / SHORTEST_LOOK)) for number, wait in waits.items()}
    look_again(stageout.ledger, stageout_transfers, rounded, claimed.claim, now=now)


# -- what people do


@dataclass(frozen=True, slots=True)
class KilledTransfers:
    """Transfers that are killed, and those that are killed as soon as FTS confirms it, by id."""

    killed: frozenset[int]
    killing: frozenset[int]


def resubmit(
    bind: Bind,
    *,
    by: str,
    now: datetime,
    ids: Collection[int] | None = None,
    owner: str | None = None,
    workflow: str | None = None,
) -> frozenset[int]:
    """Make failed and killed transfers new again, with all their retries; what has another state is left.

    Args:
        bind: The ledger, or the caller's transaction.
        by: Who wants it, for the history.
        now: When.
        ids: Only these; None: all that fit the rest.
        owner: Only those of this user.
        workflow: Only those of this workflow, of `owner`.

    Returns:
        The ids of the transfers that are new now.
    """
    to = {_T.FAILED: _T.NEW, _T.KILLED: _T.NEW}
    return _moved(bind, to, f"resubmitted by {by}", now, (ids, owner, workflow))[_T.NEW]


def kill(
    bind: Bind,
    *,
    by: str,
    now: datetime,
    ids: Collection[int] | None = None,
    owner: str | None = None,
    workflow: str | None = None,
) -> KilledTransfers:
    """Kill transfers. What FTS has is killed when nothing of it can write any more; what is copied already goes on.

    The arguments are those of `resubmit`.
    """
    to = {
        _T.NEW: _T.KILLED,
        _T.RETRY_WAIT: _T.KILLED,
        _T.NEEDS_CREDENTIAL: _T.KILLED,
        _T.CLAIMED: _T.KILLING,
        _T.SUBMITTED: _T.KILLING,
        _T.ACTIVE: _T.KILLING,
    }
    moved = _moved(bind, to, f"killed by {by}", now, (ids, owner, workflow))
    return KilledTransfers(moved[_T.KILLED], moved[_T.KILLING])


def kill_workflow(bind: Bind, owner: str, workflow: str, *, by: str, now: datetime) -> KilledTransfers:
    """Close a workflow, and kill its transfers as `kill` does. Raises as `close_workflow`."""
    # closed first: no file is added behind the kill
    close_workflow(bind, owner, workflow, now=now)
    note_killed(bind, owner, workflow, now=now)
    return kill(bind, by=by, now=now, owner=owner, workflow=workflow)


_Choice = tuple[Collection[int] | None, str | None, str | None]


def _moved(
    bind: Bind, to: Mapping[TransferState, TransferState], reason: str, now: datetime, choice: _Choice
) -> defaultdict[TransferState, frozenset[int]]:
    """Make the moves, 500 in a transaction; the ids that moved, by their state after it."""
    moved: defaultdict[TransferState, frozenset[int]] = defaultdict(frozenset)
    for piece in _chosen(bind, list(to), choice):

        def work(connection: Connection, piece: Sequence[Row[Any]] = piece) -> dict[TransferState, frozenset[int]]:
            moves = [TransferMove(row.id, _T(row.state), _target(row, to, now), reason) for row in piece]
            done = move_transfers(connection, moves, StageoutComponent.PERSON, now=now)
            _wake(connection, [row.job for row in piece if row.job is not None and row.id in done], now)
            return {
                state: frozenset(move.id for move in moves if move.to is state and move.id in done)
                for state in {move.to for move in moves}
            }

        for state, numbers in writing(bind, work).items():
            moved[state] |= numbers
    return moved


def _target(row: Row[Any], to: Mapping[TransferState, TransferState], now: datetime) -> TransferState:
    """Where a transfer goes; it is not killed yet while a copy of an earlier attempt may still write."""
    target = to[_T(row.state)]
    writes = row.may_write_until is not None and row.may_write_until > now
    return _T.KILLING if target is _T.KILLED and writes else target


def _chosen(bind: Bind, states: Sequence[TransferState], choice: _Choice) -> Iterator[Sequence[Row[Any]]]:
    """The transfers in these states, in pieces."""
    ids, owner, workflow = choice
    if ids is None and owner is None:
        raise ValueError("neither ids nor an owner: that would be every transfer")
    columns = stageout_transfers.c
    query = select(columns.id, columns.state, columns.job, columns.may_write_until).where(
        columns.state.in_([state.value for state in states])
    )
    if owner is not None:
        query = query.join(stageout_requests, columns.request == stageout_requests.c.id)
        query = query.where(stageout_requests.c.owner == owner)
        if workflow is not None:
            query = query.where(stageout_requests.c.workflow == workflow)
    if ids is not None:
        for piece in pieces(sorted(set(ids))):
            with reading(bind) as connection:
                yield tuple(connection.execute(query.where(columns.id.in_(piece))))
        return
    last = 0
    while True:
        with reading(bind) as connection:
            rows: Sequence[Row[Any]] = tuple(
                connection.execute(query.where(columns.id > last).order_by(columns.id).limit(AT_ONCE))
            )
        if not rows:
            return
        last = rows[-1].id
        yield rows


def _wake(connection: Connection, jobs: Sequence[int], now: datetime) -> None:
    """Let the monitor see to jobs now, if it has not claimed them."""
    columns = stageout_jobs.c
    free = (columns.state.in_([_J.SUBMITTED.value, _J.ACTIVE.value]), columns.claim.is_(None), columns.due_at > now)
    for piece in pieces(sorted(set(jobs))):
        connection.execute(update(stageout_jobs).where(columns.id.in_(piece), *free).values(due_at=now))
