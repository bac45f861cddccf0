"""The reporter: what FTS copied is compared at the sites, and is done only when it was verified."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from include.errors import NightshiftError
from include.federation.records import note_results, summed
from include.federation.states import EvidenceSource, SiteObservation
from include.stageout.attempts.answers import FTS_TIME, copy_time
from include.stageout.claims import LARGE, ClaimedRows, claim_large, claim_transfers, keep_claim, look_again
from include.stageout.files import is_bare
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.opening import Stageout
from include.stageout.places.facts import UNKNOWN_TIME, SitePlace
from include.stageout.places.verify import READ_IN_PASS, CopyDecision, CopyVerdict, judge_copies
from include.stageout.requests import Transfer
from include.stageout.retry import TransferFailureClass, failure_class
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.tables import stageout_transfers

SHORTEST_LOOK, LONGEST_LOOK = timedelta(seconds=15), timedelta(minutes=30)
"""Between two questions to a site that cannot answer; the wait grows with the age of the copy."""
THREADS = 8
"""Storages that are asked at the same time."""
MOST_LARGE = 16
"""Large files that one batch reads."""
CORRUPT = TransferFailureClass.DESTINATION_CHECKSUM
"""The failure of a copy that counts for the health of its site; FTS has reported the others."""
_T = TransferState


@dataclass(frozen=True, slots=True)
class ReporterReport:
    """The work of one batch of the reporter.

    `rows`: transfers that it took; 0: nothing is due. `moved`: transfers by the state that they are in now. `unknown`:
    copies that could not be compared, by destination. `large`: copies that were left to `read_back`.
    """

    rows: int
    moved: Mapping[str, int]
    unknown: Mapping[str, int]
    large: int


def report(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> ReporterReport:
    """Verify copies; one batch. What would have to be read here, and is large, is left to `read_back`."""
    claimed = claim_transfers(stageout.ledger, _T.COPIED, stageout.worker, limit=limit, now=now())
    return _verified(stageout, claimed, now, READ_IN_PASS)


def read_back(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> ReporterReport:
    """Verify large copies by reading them; one batch, which may take hours. Arguments as of `report`."""
    claimed = claim_large(stageout.ledger, stageout.worker, limit=min(limit, MOST_LARGE), now=now())
    return _verified(stageout, claimed, now, None)


def _verified(
    stageout: Stageout, claimed: ClaimedRows[Transfer], now: Callable[[], datetime], most: int | None
) -> ReporterReport:
    """Verify what was claimed; `most`: as `judge_copies` takes it."""
    groups, at_once = _by_storage(stageout, claimed.rows)
    if most is None:
        # what was read is recorded, however long the next file takes
        groups = [(place, [row]) for place, rows in groups for row in rows]
    batch = _Batch(stageout, claimed.claim, {row.id: row for row in claimed.rows})
    batch.record(at_once, now())
    pool = ThreadPoolExecutor(THREADS, "reporter")
    try:
        waiting = {pool.submit(_reported, stageout, *group, most): group[1] for group in groups}
        while waiting:
            # in one transaction; but a storage that answers slowly holds up no other, and costs no claim
            ended, _ = wait(waiting, timeout=stageout.worker.keeps.total_seconds() / 3)
            found = _together(future.result() for future in ended)
            for future in ended:
                del waiting[future]
            left = [row.id for theirs in waiting.values() for row in theirs]
            if left:
                keep_claim(stageout.ledger, stageout_transfers, left, claimed.claim, stageout.worker, now=now())
            batch.record(found, now())
    finally:
        # a task that has to end waits for no storage
        pool.shutdown(wait=False, cancel_futures=True)
    return ReporterReport(len(claimed.rows), batch.moved, batch.unknown, batch.large)


@dataclass(frozen=True, slots=True)
class _Found:
    """Results of comparisons: moves, why other copies could not be compared, and why others are read later."""

    moves: list[TransferMove] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    large: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    """Records what is found out of the claimed rows, and counts it."""

    stageout: Stageout
    claim: str
    rows: Mapping[int, Transfer]
    moved: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    large: int = 0

    def record(self, found: _Found, now: datetime) -> None:
        ledger, claim = self.stageout.ledger, self.claim
        if found.moves:
            moved = move_transfers(ledger, found.moves, StageoutComponent.REPORTER, now=now, claim=claim)
            self.moved.update(move.to.value for move in found.moves if move.id in moved)
            corrupt = [
                SiteObservation(self.rows[move.id].destination, EvidenceSource.TRANSFER, kind=CORRUPT.value, failed=1)
                for move in found.moves
                if move.id in moved and move.failure is CORRUPT
            ]
            note_results(ledger, summed(corrupt), now=now)
        if found.reasons:
            waits = {number: _next_look(self.rows[number], now) for number in found.reasons}
            look_again(ledger, stageout_transfers, waits, claim, now=now, reasons=found.reasons)
        if found.large:
            # if it is not read by then, the reporter takes it again
            waits = dict.fromkeys(found.large, LONGEST_LOOK)
            look_again(ledger, stageout_transfers, waits, claim, now=now, reasons=found.large, to=LARGE)
        self.unknown.update(self.rows[number].destination for number in found.reasons)
        self.large += len(found.large)


def _by_storage(stageout: Stageout, rows: Sequence[Transfer]) -> tuple[list[tuple[SitePlace, list[Transfer]]], _Found]:
    """The copies at each storage, and those that are not compared."""
    groups: dict[int, tuple[SitePlace, list[Transfer]]] = {}
    others = _Found()
    for row in rows:
        if is_bare(row.destination_name):
            others.moves.append(TransferMove(row.id, _T.COPIED, _T.DONE, "as FTS compared it: no site has it"))
            continue
        try:
            place = stageout.place(row.destination, row.owner)
        except NightshiftError as error:
            others.reasons[row.id] = str(error)
        else:
            groups.setdefault(id(place), (place, []))[1].append(row)
    return list(groups.values()), others


def _reported(stageout: Stageout, place: SitePlace, rows: Sequence[Transfer], most: int | None) -> _Found:
    """Return what is found out of copies at one storage."""
    try:
        decisions = _decisions(stageout, place, rows, most)
    except NightshiftError as error:
        owners = {row.owner for row in rows}
        if len(owners) == 1:
            return _Found(reasons={row.id: str(error) for row in rows})
        # the credential of one of them may be the cause
        by_owner = ([row for row in rows if row.owner == owner] for owner in owners)
        return _together(_reported(stageout, place, theirs, most) for theirs in by_owner)
    found = _Found()
    for row in rows:
        decision = decisions[row.id]
        if decision.verdict is CopyVerdict.CANNOT_TELL:
            found.reasons[row.id] = decision.reason.format()
        elif decision.verdict is CopyVerdict.LOOK:
            found.large[row.id] = f"larger than {READ_IN_PASS >> 20} MiB: it waits to be read by `stage_out_read_back`"
        else:
            try:
                found.moves.append(_move(stageout, place, row, decision))
            except NightshiftError as error:
                found.reasons[row.id] = str(error)
    return found


def _together(parts: Iterable[_Found]) -> _Found:
    whole = _Found()
    for part in parts:
        whole.moves.extend(part.moves)
        whole.reasons.update(part.reasons)
        whole.large.update(part.large)
    return whole


def _decisions(
    stageout: Stageout, place: SitePlace, rows: Sequence[Transfer], most: int | None
) -> dict[int, CopyDecision]:
    by_id = {row.id: row for row in rows}
    return judge_copies(
        stageout.site(rows[0].destination),
        rows,
        destination=place,
        source=lambda number: stageout.place(by_id[number].source, by_id[number].owner),
        most=most,
    )


def _move(stageout: Stageout, place: SitePlace, row: Transfer, decision: CopyDecision) -> TransferMove:
    existed = row.failure is TransferFailureClass.DESTINATION_EXISTS and not row.may_overwrite
    if existed and decision.verdict is CopyVerdict.VERIFIED and not decision.proof:
        reason = "the destination exists, and only its size could be compared"
        return TransferMove(row.id, _T.COPIED, _T.FAILED, reason)
    if decision.verdict is CopyVerdict.VERIFIED:
        # the same words for all: what was compared is in the columns
        reason = "verified by its size" if decision.checksum is None else "verified by its checksum"
        if existed:
            reason = f"{reason}: the destination existed, and is the file of the request"
        # what is in the row already is not written again
        size = None if decision.size == row.size else decision.size
        checksum = None if decision.checksum == row.checksum else decision.checksum
        return TransferMove(row.id, _T.COPIED, _T.DONE, reason, size=size, checksum=checksum)
    failure, own = decision.reason, None
    if decision.verdict is CopyVerdict.DIFFERS and not row.may_overwrite:
        own = _is_leftover(place, row, stageout.settings.copy_margin) or None
    if decision.verdict is CopyVerdict.DIFFERS and not (row.may_overwrite or own):
        # it existed before any attempt: it is never replaced, whatever the retry algorithm would decide
        reason = f"the destination exists, and is another file: {failure.text}"
        return TransferMove(row.id, _T.COPIED, _T.FAILED, reason, failure=TransferFailureClass.DESTINATION_EXISTS)
    chance = random.random()  # noqa: S311 - jitter
    decided = stageout.retry(failure, row.retries, chance)
    later = timedelta(seconds=round(decided.wait.total_seconds()))
    reason = decided.reason
    if own and decided.to is _T.RETRY_WAIT:
        reason = f"{reason}; an attempt of this transfer left it, and the next one replaces it"
    return TransferMove(
        row.id, _T.COPIED, decided.to, reason, later,
        failure=failure_class(failure), may_overwrite=own,
    )  # fmt: skip


def _is_leftover(place: SitePlace, row: Transfer, margin: timedelta) -> bool:
    """Tell whether the destination is a part of the file that an attempt of this transfer left when it was cut off.

    It is smaller than the file, and was written within the longest time of the last attempt that began to copy. A
    storage that does not say when it was written proves nothing. Raises NightshiftError as `SitePlace.listed`.
    """
    if row.began_at is None or row.size is None:
        return False
    folder = row.destination_name.rpartition("/")[0]
    named = ((size, at) for name, size, at in place.listed(folder) if name == row.destination_name)
    size, at = next(named, (row.size, UNKNOWN_TIME))
    # its time has no fraction of a second: what is of that second may have been there before the copy
    began = row.began_at + FTS_TIME
    return size < row.size and began <= at <= row.began_at + copy_time(row.size) + margin


def _next_look(row: Transfer, now: datetime) -> timedelta:
    age = now - row.moved_at
    return min(max(SHORTEST_LOOK, age // 4 // SHORTEST_LOOK * SHORTEST_LOOK), LONGEST_LOOK)
