"""Blocks of files of a data set: verified files are put into an open block, which is closed and then registered.

A block is closed when it is full, when its first file has waited long enough, or when its workflow is closed. Its name
is made with it, so the catalogue recognizes a block whose registration is repeated.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from include.ledger.engine import Bind, reading, writing
from include.stageout.claims import StageoutWorker, due, lock_oldest
from include.stageout.errors import MOVE_REFUSED, WORKFLOW_UNKNOWN
from include.stageout.files import digest_of
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.registration.catalogue import CatalogueBlock
from include.stageout.requests import insert_new, pieces, rows_in, update_rows
from include.stageout.retry import MAX_REASON_CHARACTERS
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.tables import (
    stageout_blocks,
    stageout_queues,
    stageout_requests,
    stageout_transfers,
    stageout_workflows,
)

AFTER_CLOSING = timedelta(minutes=10)
"""For how long a block of a workflow that is closed waits for further files."""
RECHECK = timedelta(hours=1)
"""A file whose block should have been registered for so long is checked again."""


class BlockState(Enum):
    """The state of a block."""

    OPEN = "open"
    CLOSED = "closed"
    """It gets no further files and waits for its registration."""
    REGISTERED = "registered"
    """Each file is registered, or was refused and has failed."""
    REFUSED = "refused"
    """Every file was refused."""


BLOCK_MOVES = frozenset(
    {
        (BlockState.OPEN, BlockState.CLOSED),
        (BlockState.CLOSED, BlockState.REGISTERED),
        (BlockState.CLOSED, BlockState.REFUSED),
    }
)
"""All are the register's, but for the first: a person who closes a workflow makes it, too."""
_UNFINISHED = (BlockState.OPEN.value, BlockState.CLOSED.value)


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """When a block is closed: with so many files, or so long after its first one."""

    files: int
    age: timedelta


@dataclass(frozen=True, slots=True)
class PlacedFiles:
    """Counts of verified files: `placed` in blocks, `unregistered` by request, `late`: in a block already."""

    placed: int = 0
    unregistered: int = 0
    late: int = 0
    closed: int = 0
    """Blocks that are full."""

    @property
    def files(self) -> int:
        return self.placed + self.unregistered + self.late


@dataclass(slots=True)
class _Filled:
    """A block while files are put into it. `id` stays None until it is in the ledger."""

    id: int | None
    digest: str
    block: CatalogueBlock
    due_at: datetime
    files: int = 0
    bytes: int = 0
    added: list[int] = field(default_factory=list)


def place_files(bind: Bind, limits: BlockLimits, *, limit: int, now: datetime) -> PlacedFiles:
    """Put verified files that are due into the open blocks of their data sets, in one transaction.

    Files without a data set may be cleaned. It needs no claim, since nothing else than the ledger is asked.

    `limits`: when a block is closed.
    """

    def work(connection: Connection) -> PlacedFiles:
        ids = lock_oldest(connection, stageout_transfers, due(stageout_transfers, TransferState.DONE, now), limit)
        rows = _rows(connection, ids)
        plain = [row.id for row in rows if row.dataset is None]
        moves = [
            TransferMove(number, TransferState.DONE, TransferState.CLEANING, "it is not registered") for number in plain
        ]
        move_transfers(connection, moves, StageoutComponent.REGISTER, now=now)
        late = [row.id for row in rows if row.dataset is not None and row.block_state in _UNFINISHED]
        _wait(connection, late, now + RECHECK)
        waiting: defaultdict[str, list[Row[Any]]] = defaultdict(list)
        for row in rows:
            if row.dataset is not None and row.block_state not in _UNFINISHED:
                waiting[digest_of(row.owner, row.workflow, row.dataset)].append(row)
        blocks = _fill(connection, waiting, limits, now)
        _store(connection, blocks, limits, now)
        full = sum(block.files >= limits.files for block in blocks)
        return PlacedFiles(sum(map(len, waiting.values())), len(plain), len(late), full)

    return writing(bind, work)


def close_old_blocks(bind: Bind, *, limit: int, now: datetime) -> int:
    """Close open blocks whose time is over; returns how many."""

    def work(connection: Connection) -> int:
        ids = lock_oldest(connection, stageout_blocks, due(stageout_blocks, BlockState.OPEN, now), limit)
        return _close(connection, ids, "its first file has waited long enough", now)

    return writing(bind, work)


def close_workflow(bind: Bind, owner: str, name: str, *, now: datetime) -> bool:
    """Close a workflow: it gets no further files, and its open blocks are registered. It cannot be opened again.

    Transfers that are on the way go on.

    Returns False if it was closed before. Raises StageoutError: WORKFLOW_UNKNOWN if no request of the owner names it.
    """
    columns = stageout_workflows.c
    of_it = columns.digest == digest_of(owner, name)
    requests = stageout_requests.c
    known = select(requests.id).where(requests.owner == owner, requests.workflow == name).limit(1)

    def work(connection: Connection) -> bool:
        if connection.scalar(known) is None:
            raise WORKFLOW_UNKNOWN(f"workflow {name} of {owner}", "no request names it")
        row = {"digest": digest_of(owner, name), "owner": owner, "name": name}
        connection.execute(insert_new(stageout_workflows), row)
        changed = connection.execute(
            update(stageout_workflows).where(of_it, columns.closed_at.is_(None)).values(closed_at=now)
        )
        # after the mark: what is put into a block in this moment either sees it, or is seen here
        blocks = stageout_blocks.c
        open_ones = (blocks.owner == owner, blocks.workflow == name, blocks.state == BlockState.OPEN.value)
        ids = connection.scalars(select(blocks.id).where(*open_ones).order_by(blocks.id).with_for_update())
        _close(connection, list(ids), "its workflow is closed", now)
        return changed.rowcount > 0

    return writing(bind, work)


def note_killed(bind: Bind, owner: str, name: str, *, now: datetime) -> None:
    """Note that the transfers of a closed workflow are killed; the first time counts."""
    columns = stageout_workflows.c
    where = (columns.digest == digest_of(owner, name), columns.killed_at.is_(None))
    writing(bind, lambda connection: connection.execute(update(stageout_workflows).where(*where).values(killed_at=now)))


@dataclass(frozen=True, slots=True)
class ClaimedBlock:
    """A closed block that the caller registers."""

    id: int
    claim: str
    block: CatalogueBlock


def claim_blocks(bind: Bind, worker: StageoutWorker, *, limit: int, now: datetime) -> tuple[ClaimedBlock, ...]:
    """Take closed blocks that are due, the oldest first."""
    columns = stageout_blocks.c

    def work(connection: Connection) -> tuple[ClaimedBlock, ...]:
        ids = lock_oldest(connection, stageout_blocks, due(stageout_blocks, BlockState.CLOSED, now), limit)
        claim = secrets.token_hex(16)
        values = {"claim": claim, "claimed_by": worker.name, "due_at": now + worker.keeps}
        found: list[ClaimedBlock] = []
        for piece in pieces(ids):
            connection.execute(update(stageout_blocks).where(columns.id.in_(piece)).values(values))
            rows = connection.execute(select(stageout_blocks).where(columns.id.in_(piece)).order_by(columns.id))
            found += [ClaimedBlock(row.id, claim, _block(row)) for row in rows]
        return tuple(found)

    return writing(bind, work)


def files_of_block(bind: Bind, block: int) -> tuple[Row[Any], ...]:
    """The verified files of a block: id, logical name and site, size, checksum."""
    columns = stageout_transfers.c
    query = select(
        columns.id, columns.destination_name, stageout_queues.c.destination, columns.size, columns.checksum
    ).join(stageout_queues, columns.queue == stageout_queues.c.id)
    query = query.where(columns.block == block, columns.state == TransferState.DONE.value).order_by(columns.id)
    with reading(bind) as connection:
        return tuple(connection.execute(query))


def finish_block(bind: Bind, claimed: ClaimedBlock, moves: Sequence[TransferMove], *, now: datetime) -> frozenset[int]:
    """Record what the catalogue did with a block and its files, in one transaction.

    `moves`: of each of its files: to registered, or to failed. Returns the ids of the transfers that moved; none if
    another process has the block by now.
    """
    registered = sum(move.to is TransferState.REGISTERED for move in moves)
    state = BlockState.REGISTERED if registered or not moves else BlockState.REFUSED
    _require(BlockState.CLOSED, state)
    reason = f"{registered} of {len(moves)} files are registered"

    def work(connection: Connection) -> frozenset[int]:
        if not _release(connection, claimed, state, reason, now, now):
            return frozenset()
        return move_transfers(connection, moves, StageoutComponent.REGISTER, now=now)

    return writing(bind, work)


def postpone_block(bind: Bind, claimed: ClaimedBlock, reason: str, *, now: datetime, until: datetime) -> None:
    """Give a block back whose catalogue cannot be asked; it is due again at `until`."""
    writing(bind, lambda connection: _release(connection, claimed, BlockState.CLOSED, reason, now, until))


def _rows(connection: Connection, ids: Sequence[int]) -> list[Row[Any]]:
    """The transfers, by id, each with owner, workflow and the state of its block."""
    columns = stageout_transfers.c
    query = (
        select(
            columns.id, columns.dataset, columns.size, stageout_queues.c.owner, stageout_requests.c.workflow,
            stageout_blocks.c.state.label("block_state"),
        )
        .join(stageout_queues, columns.queue == stageout_queues.c.id)
        .join(stageout_requests, columns.request == stageout_requests.c.id)
        .outerjoin(stageout_blocks, columns.block == stageout_blocks.c.id)
        .order_by(columns.id)
    )  # fmt: skip
    return list(rows_in(connection, query, columns.id, ids))


def _wait(connection: Connection, transfers: Sequence[int], until: datetime, block: int | None = None) -> None:
    values = {"due_at": until} if block is None else {"due_at": until, "block": block}
    update_rows(connection, stageout_transfers, transfers, values)


def _fill(
    connection: Connection, waiting: Mapping[str, Sequence[Row[Any]]], limits: BlockLimits, now: datetime
) -> list[_Filled]:
    """Open blocks with these files, new ones where there is no room; those of the ledger are locked."""
    open_blocks = _open_blocks(connection, sorted(waiting))
    filled: list[_Filled] = []
    # in one order: two processes that fill the same blocks wait for each other, and do not deadlock
    for digest, rows in sorted(waiting.items()):
        room = open_blocks[digest]
        for row in rows:
            while room and room[0].files >= limits.files:
                del room[0]
            if not room:
                name = f"{row.dataset}#{secrets.token_hex(16)}"
                new = CatalogueBlock(name, row.dataset, row.owner, row.workflow)
                room.append(_Filled(None, digest, new, now + limits.age))
            block = room[0]
            if not block.added:
                filled.append(block)
            block.added.append(row.id)
            block.files += 1
            block.bytes += row.size or 0
    return filled


def _open_blocks(connection: Connection, digests: Sequence[str]) -> defaultdict[str, list[_Filled]]:
    columns = stageout_blocks.c
    found: defaultdict[str, list[_Filled]] = defaultdict(list)
    query = select(stageout_blocks).where(columns.state == BlockState.OPEN.value)
    query = query.order_by(columns.digest, columns.id).with_for_update()
    for row in rows_in(connection, query, columns.digest, digests):
        found[row.digest].append(_Filled(row.id, row.digest, _block(row), row.due_at, row.files, row.bytes))
    return found


def _store(connection: Connection, blocks: Sequence[_Filled], limits: BlockLimits, now: datetime) -> None:
    """Write the blocks and which files are in them."""
    numbers = [block.id if block.id is not None else _insert(connection, block, now) for block in blocks]
    closed = _closed_workflows(connection, blocks)
    full: list[int] = []
    for number, block in zip(numbers, blocks, strict=True):
        is_closed = digest_of(block.block.owner, block.block.workflow) in closed
        due_at = min(block.due_at, now + AFTER_CLOSING) if is_closed else block.due_at
        values = {"files": block.files, "bytes": block.bytes, "due_at": due_at}
        connection.execute(update(stageout_blocks).where(stageout_blocks.c.id == number).values(values))
        _wait(connection, block.added, due_at + RECHECK, number)
        full += [number] if block.files >= limits.files else []
    _close(connection, full, f"it has {limits.files} files", now)


def _insert(connection: Connection, block: _Filled, now: datetime) -> int:
    values = {
        "digest": block.digest,
        "owner": block.block.owner,
        "workflow": block.block.workflow,
        "dataset": block.block.dataset,
        "name": block.block.name,
        "files": block.files,
        "bytes": block.bytes,
        "state": BlockState.OPEN.value,
        "reason": "its first file is verified",
        "due_at": block.due_at,
        "created_at": now,
        "moved_at": now,
    }
    return int(connection.execute(insert(stageout_blocks).values(values)).lastrowid)


def _closed_workflows(connection: Connection, blocks: Iterable[_Filled]) -> set[str]:
    """The digests of those workflows that are closed.

    The blocks are locked by now, and the marks are locked here: who closes a workflow in this moment waits, and then
    finds the blocks, or is waited for.
    """
    digests = (digest_of(block.block.owner, block.block.workflow) for block in blocks)
    columns = stageout_workflows.c
    query = select(columns.digest).where(columns.closed_at.is_not(None)).order_by(columns.digest)
    marked = rows_in(connection, query.with_for_update(read=True), columns.digest, digests)
    return {row.digest for row in marked}


def _close(connection: Connection, blocks: Sequence[int], reason: str, now: datetime) -> int:
    _require(BlockState.OPEN, BlockState.CLOSED)
    values = {"state": BlockState.CLOSED.value, "reason": reason, "due_at": now, "moved_at": now}
    update_rows(connection, stageout_blocks, blocks, values)
    return len(blocks)


def _release(
    connection: Connection, claimed: ClaimedBlock, state: BlockState, reason: str, now: datetime, due_at: datetime
) -> bool:
    """End the claim of a closed block; False: another process has it."""
    columns = stageout_blocks.c
    ours = (columns.id == claimed.id, columns.claim == claimed.claim, columns.state == BlockState.CLOSED.value)
    values = {
        "state": state.value,
        "reason": reason[:MAX_REASON_CHARACTERS],
        "due_at": due_at,
        "moved_at": now,
        "claim": None,
        "claimed_by": None,
    }
    return connection.execute(update(stageout_blocks).where(*ours).values(values)).rowcount > 0


def _block(row: Row[Any]) -> CatalogueBlock:
    return CatalogueBlock(row.name, row.dataset, row.owner, row.workflow)


def _require(current: BlockState, to: BlockState) -> None:
    if (current, to) not in BLOCK_MOVES:
        raise MOVE_REFUSED("block", f"no move leads from {current.value} to {to.value}")
