"""What holds after every step, by the tables of the ledger and by what is really at the sites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, select

from include.ledger.engine import reading
from include.stageout.archive import MoveRecord
from include.stageout.states import (
    JOB_ENDED,
    JOB_MOVES,
    TRANSFER_ENDED,
    TRANSFER_MOVES,
    StageoutComponent,
    TransferJobState,
    TransferState,
)
from include.stageout.tables import stageout_archive, stageout_jobs, stageout_moves, stageout_transfers
from tests.faults.stageout.world import KnownFile, StageoutWorld

_T = TransferState
VERIFIED = {_T.DONE, _T.REGISTERED, _T.CLEANING, _T.CLEANED, _T.KEPT}
CATALOGUED = {_T.REGISTERED, _T.CLEANING, _T.CLEANED, _T.KEPT}
REMOVABLE = {_T.CLEANING, _T.CLEANED}
IN_A_JOB = {_T.CLAIMED, _T.SUBMITTED, _T.ACTIVE, _T.KILLING}
"""States in which FTS may write the destination."""
FINAL = {_T.CLEANED, _T.KILLED}
"""States that say that nothing writes it."""
ADOPTED = "its FTS job is lost; the destination is"


@dataclass(frozen=True)
class Account:
    """The ledger's rows: transfers that are alive and archived, their moves, and jobs."""

    alive: dict[int, Row[Any]]
    archived: dict[int, Row[Any]]
    moves: dict[int, list[MoveRecord]]
    jobs: dict[int, Row[Any]]
    job_moves: dict[int, list[MoveRecord]]

    @classmethod
    def of(cls, world: StageoutWorld) -> Account:
        with reading(world.ledger) as connection:
            alive = {row.id: row for row in connection.execute(select(stageout_transfers))}
            archived = {row.id: row for row in connection.execute(select(stageout_archive))}
            jobs = {row.id: row for row in connection.execute(select(stageout_jobs))}
            moves: defaultdict[int, list[MoveRecord]] = defaultdict(list)
            job_moves: defaultdict[int, list[MoveRecord]] = defaultdict(list)
            for row in connection.execute(select(stageout_moves).order_by(stageout_moves.c.id)):
                move = MoveRecord(row.state_before, row.state, row.component, row.reason, row.moved_at)
                (job_moves if row.transfer is None else moves)[row.transfer or row.job].append(move)
        for row in archived.values():
            moves[row.id] = list(TypeAdapter(tuple[MoveRecord, ...]).validate_json(row.history))
        return cls(alive, archived, moves, jobs, job_moves)

    def state(self, number: int) -> TransferState:
        return TransferState((self.alive.get(number) or self.archived[number]).state)

    def row(self, number: int) -> Row[Any]:
        return self.alive.get(number) or self.archived[number]


def check(world: StageoutWorld) -> Account:
    """Raises AssertionError that names the file."""
    assert world.storages.violations == [], world.storages.violations
    account = Account.of(world)
    assert not set(account.alive) & set(account.archived)
    assert set(account.alive) | set(account.archived) == set(world.files)
    for number, row in account.jobs.items():
        _require_history(account.job_moves[number], row.state, JOB_MOVES, TransferJobState, f"job {number}")
    for file in world.files.values():
        _check_file(world, account, file)
    return account


def _check_file(world: StageoutWorld, account: Account, file: KnownFile) -> None:
    row, state = account.row(file.id), account.state(file.id)
    what = f"{file}, {[f'{move.before} -> {move.state}: {move.reason}' for move in account.moves[file.id]]}"
    _require_history(account.moves[file.id], row.state, TRANSFER_MOVES, TransferState, what)
    writer = world.writers.get(file.destination)
    own = state in IN_A_JOB and row.job is not None and account.jobs[row.job].fts_id == writer
    if writer is not None and not own:
        # a copy that outlives its attempt: nothing is final while it may write
        known = file.id in account.alive and row.may_write_until is not None and row.may_write_until >= world.time
        assert known, f"{state}, but FTS job {writer} may still write the destination; {what}"
        assert state not in FINAL, f"{state}, but FTS job {writer} may still write the destination; {what}"
    if state in VERIFIED:
        arrived = world.arrived(file)
        if any(move.reason.startswith(ADOPTED) for move in account.moves[file.id]):
            # a copy of the job that FTS has forgotten may replace it later: then its source stays
            arrived = arrived or file.source in world.storages.files
        # a source that was there when its copy was lost stays: `may_go` sees a removal
        arrived = arrived or file.copy_lost
        assert arrived, f"{state} without a copy: {world.storages.files.get(file.destination)}; {what}"
    if file.dataset is not None and state in CATALOGUED:
        assert world.registrations(file) == 1, f"{state}, but {world.registrations(file)} times registered; {what}"
    if state not in REMOVABLE and not file.source_lost:
        assert file.source in world.storages.files, f"{state}, but its source is gone; {what}"
    if state is TransferState.CLEANED:
        assert file.source not in world.storages.files, f"{state}, but its source exists; {what}"
    if state is TransferState.FAILED:
        assert file.may_fail, f"failed without a cause; {what}"
        assert row.reason, what


def _require_history(
    moves: Sequence[MoveRecord], state: str, table: Any, kind: type[TransferState | TransferJobState], what: str
) -> None:
    """Each move is in the table, made by its component, from where the one before has led to."""
    first = TransferState.NEW if kind is TransferState else TransferJobState.SUBMITTING
    at = first.value
    for move in moves:
        rule = table.get((kind(move.before), kind(move.state)))
        assert move.before == at, f"a move from {move.before} of what is {at}; {what}"
        assert rule is not None, f"no move leads from {move.before} to {move.state}; {what}"
        assert rule.component is StageoutComponent(move.component), f"{move} by another component; {what}"
        at = move.state
    assert state == at, f"{state}, but its history ends in {at}; {what}"


def unfinished(account: Account) -> dict[int, Row[Any]]:
    """Transfers that something has still to happen to."""
    return {number: row for number, row in account.alive.items() if _T(row.state) not in TRANSFER_ENDED}


def running(account: Account) -> list[str]:
    """FTS jobs that the ledger waits for."""
    return [row.fts_id for row in account.jobs.values() if TransferJobState(row.state) not in JOB_ENDED]
