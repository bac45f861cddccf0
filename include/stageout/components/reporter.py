"""The reporter: what FTS copied is compared at the sites, and is done only when it was verified."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from include.errors import NightshiftError
from include.stageout.claims import claim_transfers, keep_claim, look_again
from include.stageout.components.tools import Stageout
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.places.compare import CopiedFile, judge_copies
from include.stageout.places.facts import SitePlace
from include.stageout.places.verify import CopyDecision, CopyVerdict
from include.stageout.retry import TransferFailureClass, failure_class
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.tables import stageout_transfers

SHORTEST_LOOK, LONGEST_LOOK = timedelta(seconds=15), timedelta(minutes=30)
"""Between two questions to a site that cannot answer; the wait grows with the age of the copy."""
THREADS = 8
"""Storages that are asked at the same time."""
_T = TransferState


@dataclass(frozen=True, slots=True)
class ReporterReport:
    """What one batch of the reporter did.

    Attributes:
        rows: Transfers that it took; 0: nothing is due.
        moved: Transfers by the state that they are in now.
        unknown: Copies that could not be compared, by destination.
    """

    rows: int
    moved: Mapping[str, int]
    unknown: Mapping[str, int]


def report(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> ReporterReport:
    """Verify copies; one batch.

    Args:
        stageout: Ledger, settings and clients.
        now: The clock, UTC.
        limit: Transfers that are taken at most.
    """
    ledger = stageout.ledger
    claimed = claim_transfers(ledger, _T.COPIED, stageout.worker, limit=limit, now=now())
    groups, reasons = _by_storage(stageout, claimed.rows)
    rows = {row.id: row for row in claimed.rows}
    moved, unknown = _record(stageout, claimed.claim, rows, [], reasons, now())
    with ThreadPoolExecutor(THREADS, "reporter") as pool:
        waiting = {pool.submit(_reported, stageout, *group): group[1] for group in groups}
        while waiting:
            # in one transaction; but a storage that answers slowly holds up no other, and costs no claim
            ended, _ = wait(waiting, timeout=stageout.worker.keeps.total_seconds() / 3)
            made, failed = _together(future.result() for future in ended)
            for future in ended:
                del waiting[future]
            left = [row.id for theirs in waiting.values() for row in theirs]
            if left:
                keep_claim(ledger, stageout_transfers, left, claimed.claim, stageout.worker, now=now())
            states, destinations = _record(stageout, claimed.claim, rows, made, failed, now())
            moved += states
            unknown += destinations
    return ReporterReport(len(claimed.rows), moved, unknown)


def _record(
    stageout: Stageout,
    claim: str,
    rows: Mapping[int, Row[Any]],
    moves: Sequence[TransferMove],
    reasons: Mapping[int, str],
    now: datetime,
) -> tuple[Counter[str], Counter[str]]:
    """Record moves, and why other copies are checked again: the states, and the destinations of the others."""
    moved: frozenset[int] = frozenset()
    if moves:
        moved = move_transfers(stageout.ledger, moves, StageoutComponent.REPORTER, now=now, claim=claim)
    if reasons:
        waits = {number: _next_look(rows[number], now) for number in reasons}
        look_again(stageout.ledger, stageout_transfers, waits, claim, now=now, reasons=reasons)
    states = Counter(move.to.value for move in moves if move.id in moved)
    return states, Counter(rows[number].destination for number in reasons)


def _by_storage(
    stageout: Stageout, rows: Sequence[Row[Any]]
) -> tuple[list[tuple[SitePlace, list[Row[Any]]]], dict[int, str]]:
    """The copies at each storage, and why others cannot be compared."""
    groups: dict[int, tuple[SitePlace, list[Row[Any]]]] = {}
    unknown: dict[int, str] = {}
    for row in rows:
        try:
            place = stageout.place(row.destination, row.owner)
        except NightshiftError as error:
            unknown[row.id] = str(error)
        else:
            groups.setdefault(id(place), (place, []))[1].append(row)
    return list(groups.values()), unknown


def _reported(
    stageout: Stageout, place: SitePlace, rows: Sequence[Row[Any]]
) -> tuple[list[TransferMove], dict[int, str]]:
    """The moves of copies at one storage, and why others could not be compared."""
    try:
        decisions = _decisions(stageout, place, rows)
    except NightshiftError as error:
        owners = {row.owner for row in rows}
        if len(owners) == 1:
            return [], {row.id: str(error) for row in rows}
        # the credential of one of them may be the cause
        return _together(_reported(stageout, place, [row for row in rows if row.owner == one]) for one in owners)
    moves: list[TransferMove] = []
    unknown: dict[int, str] = {}
    for row in rows:
        decision = decisions[row.id]
        if decision.verdict is CopyVerdict.CANNOT_TELL:
            unknown[row.id] = decision.reason.format()
        else:
            moves.append(_move(stageout, row, decision))
    return moves, unknown


def _together(
    parts: Iterable[tuple[list[TransferMove], dict[int, str]]],
) -> tuple[list[TransferMove], dict[int, str]]:
    moves: list[TransferMove] = []
    unknown: dict[int, str] = {}
    for made, failed in parts:
        moves += made
        unknown |= failed
    return moves, unknown


def _decisions(stageout: Stageout, place: SitePlace, rows: Sequence[Row[Any]]) -> dict[int, CopyDecision]:
    by_id = {row.id: row for row in rows}
    return judge_copies(
        stageout.site(rows[0].destination),
        [CopiedFile.of(row) for row in rows],
        destination=place,
        source=lambda number: stageout.place(by_id[number].source, by_id[number].owner),
    )


def _move(stageout: Stageout, row: Row[Any], decision: CopyDecision) -> TransferMove:
    if decision.verdict is CopyVerdict.VERIFIED:
        # the same words for all: what was compared is in the columns
        reason = "verified by its size" if decision.checksum is None else "verified by its checksum"
        return TransferMove(row.id, _T.COPIED, _T.DONE, reason, size=decision.size, checksum=decision.checksum)
    failure = decision.reason
    if decision.verdict is CopyVerdict.DIFFERS and not row.may_overwrite:
        # it existed before any attempt: it is never replaced, whatever the algorithm says
        reason = f"the destination exists, and is another file: {failure.text}"
        return TransferMove(row.id, _T.COPIED, _T.FAILED, reason, failure=TransferFailureClass.DESTINATION_EXISTS)
    chance = random.random()  # noqa: S311 - jitter
    decided = stageout.retry(failure, row.retries, chance)
    later = timedelta(seconds=round(decided.wait.total_seconds()))
    return TransferMove(row.id, _T.COPIED, decided.to, decided.reason, later, failure=failure_class(failure))


def _next_look(row: Row[Any], now: datetime) -> timedelta:
    age: timedelta = now - row.moved_at
    return min(max(SHORTEST_LOOK, age // 4 // SHORTEST_LOOK * SHORTEST_LOOK), LONGEST_LOOK)
