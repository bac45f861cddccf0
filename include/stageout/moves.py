"""Moves of transfers and FTS jobs in the ledger, each with its time and reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, case, insert, literal, select, update

from include.fts.states import FailureScope
from include.ledger.engine import Bind, writing
from include.stageout.errors import MOVE_REFUSED
from include.stageout.requests import pieces, rows_in, update_rows
from include.stageout.retry import MAX_REASON_CHARACTERS, TransferFailureClass
from include.stageout.states import (
    TRANSFER_ENDED,
    StageoutComponent,
    TransferJobState,
    TransferState,
    require_job_move,
    require_transfer_move,
)
from include.stageout.tables import stageout_jobs, stageout_moves, stageout_transfers

_State = TransferState | TransferJobState


@dataclass(frozen=True, slots=True)
class TransferMove:
    """A move of one transfer.

    Attributes:
        id: Its row.
        current: The state in which the caller saw it.
        to: Its next state.
        reason: Why, for people.
        wait: After how long something happens there; zero: at once.
        spends: Whether a move to retry-wait counts as a retry.
        failure: The class of a failure; None: as it was. The same holds for what follows.
        may_overwrite: Whether what is at the destination is known to be its own.
        may_write_until: How long a copy of the attempt that ends may still write to the destination.
        began_at: When an attempt that ends without proof had begun to copy.
        copied_at: When FTS finished it.
        size: Bytes, as verified.
        checksum: As verified.
        scope: The side of a failure at FTS; it is not recorded, but counts for the health of that site.
    """

    id: int
    current: TransferState
    to: TransferState
    reason: str
    wait: timedelta = timedelta()
    spends: bool = True
    failure: TransferFailureClass | None = None
    may_overwrite: bool | None = None
    may_write_until: datetime | None = None
    began_at: datetime | None = None
    copied_at: datetime | None = None
    size: int | None = None
    checksum: str | None = None
    scope: FailureScope | None = None

    def changes(self, now: datetime) -> dict[str, Any]:
        """Return what the move writes into the row, but for the end of the claim."""
        found = {
            "failure": self.failure and self.failure.value,
            "may_overwrite": self.may_overwrite,
            "may_write_until": self.may_write_until,
            "began_at": self.began_at,
            "copied_at": self.copied_at,
            "size": self.size,
            "checksum": self.checksum,
        }
        return {**_changes(self, now), **{name: value for name, value in found.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class TransferJobMove:
    """A move of an FTS job, in the form of `TransferMove`.

    `fts_id`: the id that FTS gave it, which a server that was set up again makes in another way; None: as it was.
    """

    id: int
    current: TransferJobState
    to: TransferJobState
    reason: str
    wait: timedelta = timedelta()
    fts_id: str | None = None

    def changes(self, now: datetime) -> dict[str, Any]:
        """See `TransferMove.changes`."""
        return _changes(self, now) | ({} if self.fts_id is None else {"fts_id": self.fts_id})


def move_transfers(
    bind: Bind, moves: Sequence[TransferMove], by: StageoutComponent, *, now: datetime, claim: str | None = None
) -> frozenset[int]:
    """Record moves of transfers in one transaction; each ends the claim of its transfer.

    A transfer that is in another state by now, or that another claim has taken, is left as it is: a process that was
    too slow, or whose answer was lost, changes nothing. One that becomes new is due only when no copy of an earlier
    attempt can write to its destination any more.

    `moves`: at most one for each transfer. `claim`: the claim under which the caller has the transfers; None for a
    component that claims their jobs, and for people. Returns the ids of the transfers that moved. Raises StageoutError:
    MOVE_REFUSED for a move that the table does not have, and for one of a transfer with a registration that only those
    without make, or the reverse. Nothing is moved then.
    """
    rules = {pair: require_transfer_move(*pair, by) for pair in {(move.current, move.to) for move in moves}}
    wanted = {move.id: move for move in moves}

    def work(connection: Connection) -> frozenset[int]:
        moved = _unchanged(connection, stageout_transfers, wanted, claim)
        for row in moved:
            move = wanted[row.id] = _held_back(wanted[row.id], row, now)
            registration = rules[move.current, move.to].registration
            if registration is not None and registration is not (row.dataset is not None):
                what = "has a registration" if row.dataset is not None else "has no registration"
                raise MOVE_REFUSED(f"transfer {row.id}", f"it {what}, so it is not moved to {move.to.value}")
        _record(connection, stageout_transfers, [wanted[row.id] for row in moved], by, now)
        return frozenset(row.id for row in moved)

    return writing(bind, work)


def move_jobs(
    bind: Bind, moves: Sequence[TransferJobMove], by: StageoutComponent, *, now: datetime, claim: str | None = None
) -> frozenset[int]:
    """Record moves of FTS jobs by the rules of `move_transfers`."""
    for pair in {(move.current, move.to) for move in moves}:
        require_job_move(*pair, by)
    wanted = {move.id: move for move in moves}

    def work(connection: Connection) -> frozenset[int]:
        moved = _unchanged(connection, stageout_jobs, wanted, claim)
        _record(connection, stageout_jobs, [wanted[row.id] for row in moved], by, now)
        return frozenset(row.id for row in moved)

    return writing(bind, work)


def move_claimed(
    connection: Connection,
    ids: Sequence[int],
    move: tuple[TransferState, TransferState, StageoutComponent],
    reason: str,
    claim: Mapping[str, Any],
    *,
    now: datetime,
) -> None:
    """Move transfers that a claim takes, and write the claim with it.

    `connection`: the transaction in which the caller has locked them. `move`: from which state to which, and by whom.
    `reason`: why, for people. `claim`: the values of the claim.
    """
    before, to, by = move
    require_transfer_move(before, to, by)
    values = {**claim, "state": to.value, "reason": reason, "moved_at": now}
    update_rows(connection, stageout_transfers, ids, values)
    note_moves(connection, stageout_transfers, ids, before, by)


def note_moves(connection: Connection, table: Table, ids: Sequence[int], before: _State, by: StageoutComponent) -> None:
    """Add to the history what rows are after a move: their state, reason and time.

    `connection`: the transaction in which the caller has changed the rows. `table`: that of transfers or of jobs.
    `before`: the state that all of them had.
    """
    whose = "transfer" if table is stageout_transfers else "job"
    row = table.c
    for piece in pieces(ids):
        # copied by the server: that costs less than sending each row
        moved = select(row.id, literal(before.value), row.state, literal(by.value), row.reason, row.moved_at)
        moved = moved.where(row.id.in_(piece)).order_by(row.id)
        names = [whose, "state_before", "state", "component", "reason", "moved_at"]
        connection.execute(insert(stageout_moves).from_select(names, moved))


def note_writing(connection: Connection, writing: Mapping[int, datetime]) -> None:
    """Record of transfers that are being killed until when a copy of them may still write.

    `writing`: the times, by the ids of the transfers. One that has another state by now is left.
    """
    columns = stageout_transfers.c
    for number, until in writing.items():
        killing = (columns.id == number, columns.state == TransferState.KILLING.value)
        values = {"may_write_until": until, "reason": f"FTS has canceled it; {writes_text(until)}"}
        connection.execute(update(stageout_transfers).where(*killing).values(values))


def _held_back(move: TransferMove, row: Row[Any], now: datetime) -> TransferMove:
    """The move, with the wait for a copy of an earlier attempt where it leads to the next one."""
    until = move.may_write_until or row.may_write_until
    if move.to is not TransferState.NEW or until is None or until <= now + move.wait:
        return move
    return replace(move, wait=until - now, reason=f"{move.reason}; {writes_text(until)}")


def writes_text(until: datetime) -> str:
    """The wait for a copy of an earlier attempt, for people."""
    return f"an earlier copy may still write to the destination until {until:%Y-%m-%d %H:%M:%S} UTC"


def _unchanged(
    connection: Connection,
    table: Table,
    wanted: Mapping[int, TransferMove] | Mapping[int, TransferJobMove],
    claim: str | None,
) -> list[Row[Any]]:
    """The rows, locked, that are as the caller saw them."""
    read = {"id", "state", "claim", "dataset", "may_write_until"}
    columns = [column for column in table.columns if column.name in read]
    # in one order: two processes that move the same rows wait for each other, and do not deadlock
    query = select(*columns).order_by(table.c.id).with_for_update()
    return [
        row for row in rows_in(connection, query, table.c.id, wanted)
        if row.state == wanted[row.id].current.value and claim in (None, row.claim)
    ]  # fmt: skip


def _record(
    connection: Connection,
    table: Table,
    moves: Sequence[TransferMove | TransferJobMove],
    by: StageoutComponent,
    now: datetime,
) -> None:
    together: defaultdict[tuple[_State, _State, bool], list[TransferMove | TransferJobMove]] = defaultdict(list)
    for move in moves:
        together[move.current, move.to, isinstance(move, TransferMove) and move.spends].append(move)
    for (current, to, spends), alike in together.items():
        ended = {"claim": None, "claimed_by": None, "moved_at": now, **_counted(current, to, spends=spends)}
        for piece in pieces(alike):
            changes = {move.id: move.changes(now) for move in piece}
            _update_rows(connection, table, changes, ended)
        note_moves(connection, table, [move.id for move in alike], current, by)


def _update_rows(
    connection: Connection, table: Table, changes: Mapping[int, Mapping[str, Any]], same: Mapping[str, Any]
) -> None:
    """Change rows in one statement, each in its own way; up to as many as `pieces` makes of them.

    `table`: with the column `id`. `changes`: the values of each row, by its id. A row keeps the columns that are not
    named for it. `same`: the values of all of them.
    """
    values = dict(same)
    for name in {name for row in changes.values() for name in row}:
        column = table.c[name]
        given = {number: row[name] for number, row in changes.items() if name in row}
        if len(given) == len(changes) and len(set(given.values())) == 1:
            values[name] = next(iter(given.values()))
        else:
            cases = {number: bindparam(None, value, type_=column.type, unique=True) for number, value in given.items()}
            values[name] = case(cases, value=table.c.id, else_=column)
    connection.execute(update(table).where(table.c.id.in_(list(changes))).values(values))


def _changes(move: TransferMove | TransferJobMove, now: datetime) -> dict[str, Any]:
    return {"state": move.to.value, "reason": move.reason[:MAX_REASON_CHARACTERS], "due_at": now + move.wait}


def _counted(current: _State, to: _State, *, spends: bool) -> dict[str, Any]:
    """Return what a move does to the retries and the job of a transfer."""
    changes: dict[str, Any] = {}
    if to is TransferState.RETRY_WAIT and spends:
        changes["retries"] = stageout_transfers.c.retries + 1
    if to is TransferState.NEW:
        changes["job"] = None
        if current in TRANSFER_ENDED:
            changes["retries"] = 0
    return changes
