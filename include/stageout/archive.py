"""The archivist: ended transfers leave the tables that are searched for work, and are counted in the daily sums.

The archive has each with its history.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, Table, delete, insert, select, update

from include.ledger.engine import Bind, reading, writing
from include.stageout import tables
from include.stageout.blocks import BlockState
from include.stageout.claims import at_rest, due, lock_oldest
from include.stageout.errors import MOVE_REFUSED
from include.stageout.files import digest_of
from include.stageout.opening import Stageout
from include.stageout.registration.catalogue import CatalogueBlock, CatalogueFile
from include.stageout.requests import AT_ONCE, document_of, pieces, rows_in
from include.stageout.states import JOB_ENDED, TRANSFER_ENDED, StageoutComponent, TransferJobState, TransferState
from include.stageout.sums import TransferSums, add_sums, add_times, read_sums, sums_of, time_of

LOOKED_AT_AGAIN = timedelta(days=1)
KEYS_KEPT = timedelta(days=7)
"""For how long after the last resubmission an idempotency key is still known."""
OTHER_LINKS = ("other", "other")
_COMPLETE = frozenset({TransferState.CLEANED.value, TransferState.KEPT.value})


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move in the history of a transfer."""

    before: str
    state: str
    component: str
    reason: str
    moved_at: datetime


_KEPT = TypeAdapter(tuple[MoveRecord, ...])
"""Reads the history of a transfer in the archive."""
_MOVE = [tables.stageout_moves.c[name] for name in ("state_before", "state", "component", "reason", "moved_at")]


def history(bind: Bind, transfer: int) -> tuple[MoveRecord, ...]:
    """The moves of a transfer, archived or not, the oldest first; empty for one that was not moved yet."""
    columns = tables.stageout_moves.c
    with reading(bind) as connection:
        rows = connection.execute(select(*_MOVE).where(columns.transfer == transfer).order_by(columns.id)).all()
        kept = select(tables.stageout_archive.c.history).where(tables.stageout_archive.c.id == transfer)
        text = None if rows else connection.scalar(kept)
    return tuple(MoveRecord(*row) for row in rows) if text is None else _KEPT.validate_json(text)


def archive_transfers(bind: Bind, state: TransferState, *, before: datetime, limit: int) -> int:
    """Move transfers that ended in this state before a time to the archive, the oldest first, in one transaction.

    Their destinations are free again for other transfers, and they are in the daily sums from now on. A transfer stays
    while a copy of it may still write to its destination: `before` counts from then on.

    `state`: one of TRANSFER_ENDED. Failed and killed transfers can be resubmitted until they are archived. `before`:
    how long ago they ended, at least. `limit`: how many at most, up to 500. Returns how many; less than the limit:
    there are no more. Raises StageoutError: MOVE_REFUSED for a state in which transfers have not ended.
    """
    if state not in TRANSFER_ENDED:
        raise MOVE_REFUSED("transfer", f"what is {state.value} has not ended and is not archived")

    def work(connection: Connection) -> int:
        where = [*due(tables.stageout_transfers, state, before), at_rest(before)]
        ids = lock_oldest(connection, tables.stageout_transfers, where, min(limit, AT_ONCE))
        _archive(connection, ids)
        return len(ids)

    return writing(bind, work)


@dataclass(frozen=True, slots=True)
class EndedFile:
    """The file of a transfer that is registered or has ended. `block`: the name means nothing once it is archived."""

    state: TransferState
    archived: bool
    block: CatalogueBlock | None
    file: CatalogueFile


def ended_files(bind: Bind, owner: str, ids: Collection[int]) -> tuple[dict[int, EndedFile], dict[int, int]]:
    """The files of an owner's transfers, archived or not, by id, and newer transfers to the places of archived ones."""
    live, archive, queues, blocks = (
        table.c for table in
        (tables.stageout_transfers, tables.stageout_archive, tables.stageout_queues, tables.stageout_blocks)
    )  # fmt: skip
    facts = ("id", "state", "destination_name", "size", "checksum", "dataset")
    placed = (
        select(*(live[name] for name in facts), queues.destination, blocks.workflow, blocks.name)
        .join(tables.stageout_queues, live.queue == queues.id)
        .outerjoin(tables.stageout_blocks, live.block == blocks.id)
        .where(queues.owner == owner)
    )
    old = select(*(archive[name] for name in facts), archive.destination, archive.workflow).where(
        archive.owner == owner
    )
    files: dict[int, EndedFile] = {}
    newer: dict[int, int] = {}
    with reading(bind) as connection:
        for row in [*rows_in(connection, placed, live.id, ids), *rows_in(connection, old, archive.id, ids)]:
            name = row._asdict().get("name", f"{row.dataset}#{'0' * 32}")
            block = None if None in (row.dataset, name) else CatalogueBlock(name, row.dataset, owner, row.workflow)
            file = CatalogueFile(row.id, row.destination_name, row.destination, row.size, row.checksum)
            files[row.id] = EndedFile(TransferState(row.state), "name" not in row._asdict(), block, file)
        for number, each in files.items():
            if each.archived:
                place = live.place == digest_of(each.file.site, each.file.name)
                same = (archive.destination == each.file.site, archive.destination_name == each.file.name)
                later = select(archive.id).where(archive.owner == owner, *same, archive.id > number)
                last = connection.scalar(select(live.id).where(place)) or connection.scalar(later.limit(1))
                newer |= {number: last} if last is not None else {}
    return files, newer


def retract_archived(bind: Bind, files: Mapping[int, EndedFile], reason: str, *, now: datetime) -> None:
    """Record in the archive that transfers are retracted; the daily sums have them as they ended before."""
    columns = tables.stageout_archive.c

    def work(connection: Connection) -> None:
        query = select(columns.id, columns.history).where(columns.state != TransferState.RETRACTED.value)
        for row in list(rows_in(connection, query.with_for_update(), columns.id, files)):
            before, state = files[row.id].state.value, TransferState.RETRACTED.value
            move = MoveRecord(before, state, StageoutComponent.PERSON.value, reason, now)
            kept = json.dumps([*json.loads(row.history), document_of(move)])
            values = {"state": state, "reason": reason, "history": kept}
            connection.execute(update(tables.stageout_archive).where(columns.id == row.id).values(values))

    writing(bind, work)


def archive_for_task(bind: Bind, owner: str, places: Sequence[str], *, now: datetime) -> None:
    """Move ended transfers of an owner's tasks to the archive, so that a further request may have their destinations.

    `places`: the digests of the destinations. `now`: when. A transfer stays while a copy of it may still write.
    """
    columns = tables.stageout_transfers.c
    ended = [columns.state.in_([state.value for state in TRANSFER_ENDED]), at_rest(now)]
    of_tasks = [tables.stageout_queues.c.owner == owner, tables.stageout_queues.c.fts.is_not(None)]
    query = (
        select(columns.id)
        .join(tables.stageout_queues, columns.queue == tables.stageout_queues.c.id)
        .where(*ended, *of_tasks)
    )

    def work(connection: Connection) -> None:
        for piece in pieces(places):
            locked = query.where(columns.place.in_(piece)).with_for_update()
            _archive(connection, list(connection.scalars(locked)))

    writing(bind, work)


def _archive(connection: Connection, ids: Sequence[int]) -> None:
    if not ids:
        return
    rows, moves = _archived(connection, ids)
    documents = [{**row, "history": json.dumps([*map(document_of, moves[row["id"]])])} for row in rows]
    connection.execute(insert(tables.stageout_archive), documents)
    connection.execute(delete(tables.stageout_moves).where(tables.stageout_moves.c.transfer.in_(ids)))
    connection.execute(delete(tables.stageout_transfers).where(tables.stageout_transfers.c.id.in_(ids)))
    # last: every archivist adds to the same few rows and waits for who has them
    add_sums(connection, (sums_of(row, *_steps(moves[row["id"]])) for row in rows))
    times = (time_of(row, _registered(moves[row["id"]])) for row in rows)
    add_times(connection, (time for time in times if time is not None))


def forget_jobs(bind: Bind, state: TransferJobState, *, before: datetime, limit: int) -> int:
    """Delete FTS jobs that ended in this state before a time and whose transfers are archived.

    The archive has the FTS id of each transfer's last job. A job with transfers is checked again a day later: one
    failed file keeps its job for days, and such jobs would be read again by every pass.

    Returns how many were checked; less than the limit: there are no more. Raises StageoutError: MOVE_REFUSED for a
    state in which jobs have not ended.
    """
    if state not in JOB_ENDED:
        raise MOVE_REFUSED("FTS job", f"what is {state.value} has not ended and is not deleted")
    columns = tables.stageout_jobs.c
    transfers = tables.stageout_transfers.c

    def work(connection: Connection) -> int:
        ids = lock_oldest(
            connection, tables.stageout_jobs, due(tables.stageout_jobs, state, before), min(limit, AT_ONCE)
        )
        used = set(connection.scalars(select(transfers.job).where(transfers.job.in_(ids)).distinct()))
        unused = [number for number in ids if number not in used]
        if used:
            later = {"due_at": before + LOOKED_AT_AGAIN}
            connection.execute(update(tables.stageout_jobs).where(columns.id.in_(used)).values(later))
        if unused:
            connection.execute(delete(tables.stageout_moves).where(tables.stageout_moves.c.job.in_(unused)))
            connection.execute(delete(tables.stageout_jobs).where(columns.id.in_(unused)))
        return len(ids)

    return writing(bind, work)


def forget_requests(bind: Bind, *, before: datetime, limit: int) -> int:
    """Delete requests that came before a time and whose transfers are archived; returns how many.

    Their idempotency keys are free again. The archive has the workflow of each transfer.
    """
    columns = tables.stageout_requests.c
    used = select(tables.stageout_transfers.c.id).where(tables.stageout_transfers.c.request == columns.id).exists()
    query = select(columns.id).where(columns.created_at < before, ~used).order_by(columns.created_at)
    return _delete(bind, tables.stageout_requests, query, limit)


def forget_blocks(bind: Bind, state: BlockState, *, before: datetime, limit: int) -> int:
    """Delete blocks that ended in this state before a time and whose transfers are archived; returns how many.

    The catalogue has the name of each file's block.
    """
    columns = tables.stageout_blocks.c
    used = select(tables.stageout_transfers.c.id).where(tables.stageout_transfers.c.block == columns.id).exists()
    query = select(columns.id).where(*due(tables.stageout_blocks, state, before), ~used).order_by(columns.due_at)
    return _delete(bind, tables.stageout_blocks, query, limit)


def forget_workflows(bind: Bind, *, before: datetime, limit: int) -> int:
    """Delete the marks of workflows that were closed before a time and have no requests any more; returns how many."""
    columns, requests = tables.stageout_workflows.c, tables.stageout_requests.c
    used = select(requests.id).where(requests.workflow == columns.name, requests.owner == columns.owner).exists()
    query = select(columns.id).where(columns.closed_at < before, ~used).order_by(columns.closed_at)
    return _delete(bind, tables.stageout_workflows, query, limit)


def _delete(bind: Bind, table: Table, query: Select[tuple[int]], limit: int) -> int:
    """Delete the rows that the query finds first; what others have locked is left for the next time."""

    def work(connection: Connection) -> int:
        found = query.limit(min(limit, AT_ONCE)).with_for_update(skip_locked=True)
        ids = list(connection.scalars(found))
        if ids:
            connection.execute(delete(table).where(table.c.id.in_(ids)))
        return len(ids)

    return writing(bind, work)


def _steps(moves: Sequence[MoveRecord]) -> tuple[datetime | None, datetime | None]:
    """When FTS had the transfer first, and when its destination was verified last."""
    submitted = (move.moved_at for move in moves if move.state == TransferState.SUBMITTED.value)
    verified = (move.moved_at for move in reversed(moves) if move.state == TransferState.DONE.value)
    return next(submitted, None), next(verified, None)


def _registered(moves: Sequence[MoveRecord]) -> datetime | None:
    """When the transfer was registered or, where it was not to be, verified."""
    for state in (TransferState.REGISTERED.value, TransferState.DONE.value):
        times = [move.moved_at for move in moves if move.state == state]
        if times:
            return times[-1]
    return None


def _archived(
    connection: Connection, ids: Sequence[int]
) -> tuple[list[dict[str, Any]], Mapping[int, list[MoveRecord]]]:
    """The transfers as the archive has them, and their moves, the oldest first."""
    moves: defaultdict[int, list[MoveRecord]] = defaultdict(list)
    columns = tables.stageout_moves.c
    query = select(columns.transfer, *_MOVE).where(columns.transfer.in_(ids)).order_by(columns.id)
    for transfer, *move in connection.execute(query):
        moves[transfer].append(MoveRecord(*move))
    names = set(tables.stageout_archive.columns.keys()) & set(tables.stageout_transfers.columns.keys())
    chosen = (
        select(
            *(tables.stageout_transfers.c[name] for name in sorted(names)),
            tables.stageout_queues.c.owner, tables.stageout_queues.c.source, tables.stageout_queues.c.destination,
            tables.stageout_requests.c.workflow, tables.stageout_jobs.c.fts_id,
        )
        .join(tables.stageout_queues, tables.stageout_transfers.c.queue == tables.stageout_queues.c.id)
        .join(tables.stageout_requests, tables.stageout_transfers.c.request == tables.stageout_requests.c.id)
        .outerjoin(tables.stageout_jobs, tables.stageout_transfers.c.job == tables.stageout_jobs.c.id)
        .where(tables.stageout_transfers.c.id.in_(ids))
    )  # fmt: skip
    return [dict(row) for row in connection.execute(chosen).mappings()], moves


@dataclass(frozen=True, slots=True)
class DaySummary:
    """The sums of a day.

    `day`: its beginning, in UTC. `complete`: the sums of complete transfers. `failed`: files that failed, by the class
    of the last failure; as far as they are archived. `links`: the sums of complete transfers by source and destination,
    those with the most files first.
    """

    day: datetime
    complete: TransferSums = field(default_factory=TransferSums)
    failed: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[tuple[str, str], TransferSums] = field(default_factory=dict)


def summarise(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> DaySummary:
    """The summary of the last day whose complete transfers are all archived.

    `limit`: how many links at most; the rest is one entry, `OTHER_LINKS`.
    """
    until = now().astimezone(UTC) - timedelta(hours=stageout.settings.archive_hours)
    until = until.replace(hour=0, minute=0, second=0, microsecond=0)
    day = until - timedelta(days=1)
    complete = TransferSums()
    failed: defaultdict[str, int] = defaultdict(int)
    links: defaultdict[tuple[str, str], TransferSums] = defaultdict(TransferSums)
    for key, sums in read_sums(stageout.ledger, since=day, until=until):
        if key.state in _COMPLETE:
            complete += sums
            links[key.source, key.destination] += sums
        elif key.state == TransferState.FAILED.value:
            failed[key.failure or "unknown"] += sums.files
    ordered = sorted(links.items(), key=lambda item: (-item[1].files, item[0]))
    rest = sum((sums for _, sums in ordered[limit:]), TransferSums())
    shown = dict(ordered[:limit]) | ({OTHER_LINKS: rest} if rest.files else {})
    return DaySummary(day, complete, dict(sorted(failed.items())), shown)


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """Rows that one pass archived or deleted; of jobs: checked. Nothing was due if all are 0."""

    transfers: int = 0
    jobs: int = 0
    blocks: int = 0
    requests: int = 0
    workflows: int = 0


def archive(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> ArchiveReport:
    """Return one bounded pass: archive transfers that have ended, then delete jobs, blocks and requests without
    transfers.

    Complete and retracted transfers are archived after `archive_hours`; failed and killed ones after `resubmit_days`,
    until which they can be resubmitted.

    `limit`: how many rows of each kind at most.
    """
    ledger, time = stageout.ledger, now()
    complete = time - timedelta(hours=stageout.settings.archive_hours)
    final = time - timedelta(days=stageout.settings.resubmit_days)
    old = min(complete, final) - KEYS_KEPT
    late = (TransferState.FAILED, TransferState.KILLED)
    whole = sorted(TRANSFER_ENDED.difference(late), key=lambda state: state.value)
    transfers = _each(partial(archive_transfers, ledger), whole, complete, limit)
    transfers += _each(partial(archive_transfers, ledger), late, final, limit - transfers)
    ended = (BlockState.REGISTERED, BlockState.REFUSED)
    return ArchiveReport(
        transfers,
        _each(partial(forget_jobs, ledger), JOB_ENDED, complete, limit),
        _each(partial(forget_blocks, ledger), ended, complete, limit),
        _pieces(partial(forget_requests, ledger, before=old), limit),
        _pieces(partial(forget_workflows, ledger, before=old), limit),
    )


def _each(step: Callable[..., int], states: Iterable[Enum], before: datetime, limit: int) -> int:
    """Do the step for each state, until all have `limit` rows together."""
    done = 0
    for state in states:
        done += _pieces(partial(step, state, before=before), limit - done)
    return done


def _pieces(step: Callable[..., int], limit: int) -> int:
    """Do the step in transactions of bounded size, until there is no more or there are `limit` rows."""
    done = 0
    while done < limit:
        wanted = min(AT_ONCE, limit - done)
        found = step(limit=wanted)
        done += found
        if found < wanted:
            break
    return done
