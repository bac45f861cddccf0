"""The cleaner: sources of verified copies are removed where the site and its rules allow it; all others are kept.

Only rows that are verified, and registered if they have to be, get here. Sources of failed transfers never do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import and_, or_, select

from include.errors import NightshiftError
from include.federation.records import SITE_FAILED
from include.fts.states import FailureReason, FailureScope
from include.ledger.acts import restores_of
from include.ledger.engine import reading
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.attempts.answers import FTS_TIME
from include.stageout.claims import ClaimedRows, claim_registered, claim_transfers, keep_claim, look_again
from include.stageout.findings import DONE_WITH_SOURCE, is_same_file, kept_because, removal_wait
from include.stageout.moves import TransferMove, move_transfers, writes_text
from include.stageout.opening import Stageout
from include.stageout.places.facts import FileAnswer, FileFacts, SitePlace
from include.stageout.requests import Transfer, rows_in
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.tables import stageout_queues, stageout_transfers

HELD_WAIT = timedelta(minutes=30)
"""After that a source is tried again whose site, or that of its copy, has failed or is held; it is never given up."""
CLOCKS = timedelta(minutes=1)
"""The clock of a storage may be ahead of that of FTS by so much."""
_T = TransferState
_CLEANER = StageoutComponent.CLEANER


@dataclass(frozen=True, slots=True)
class CleanReport:
    """The work of one pass. Nothing was due if all are 0.

    `registered`: registered transfers that may be cleaned now. `cleaned`: sources that were removed, or did not exist.
    `kept`: sources that stay. `postponed`: sources that are tried again later.
    """

    registered: int = 0
    cleaned: int = 0
    kept: int = 0
    postponed: int = 0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The next state of a source; `to` None: it is tried again."""

    to: TransferState | None
    reason: str
    held: bool = False
    """A site has failed or is held: it waits for as long as that lasts."""


def clean(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> CleanReport:
    """Return one bounded pass over registered and cleaning transfers. A pass that died half way is repeated by the
    next one.

    `stageout`: ledger, settings, sites and their storages. `limit`: how many transfers of each state are taken, at
    most.
    """
    if restores_of(stageout.ledger, pending=True):
        return CleanReport()  # the ledger may lack who else needs a source: a person accepts its restore first
    counts = Counter[TransferState | None]()

    def cleaned(claim: Callable[..., ClaimedRows[Transfer]]) -> int:
        since = now()
        claimed = claim(stageout.ledger, worker=stageout.worker, limit=limit, now=since)
        for rows, outcomes in _outcomes(stageout, claimed, since, now):
            counts.update(_record(stageout, claimed.claim, rows, outcomes, now()))
        return len(claimed.rows)

    cleaned(partial(claim_transfers, state=_T.CLEANING))
    registered = cleaned(claim_registered)
    return CleanReport(registered, counts[_T.CLEANED], counts[_T.KEPT], counts[None])


def _outcomes(
    stageout: Stageout, claimed: ClaimedRows[Transfer], since: datetime, now: Callable[[], datetime]
) -> Iterator[tuple[Sequence[Transfer], dict[int, _Outcome]]]:
    """Rows with what became of each: first all that is kept, then the sources of each site and user."""

    def held(ids: Collection[int]) -> Collection[int]:
        # two calls of a storage fit into the rest of a claim
        if now() - since < stageout.worker.keeps / 3:
            return ids
        return keep_claim(stageout.ledger, stageout_transfers, ids, claimed.claim, stageout.worker, now=now())

    kept: dict[int, _Outcome] = {}
    groups: defaultdict[tuple[str, str], list[Transfer]] = defaultdict(list)
    for row in claimed.rows:
        why = kept_because(stageout.settings, stageout.sites, row)
        if row.may_write_until is not None and row.may_write_until > since:
            kept[row.id] = _Outcome(None, writes_text(row.may_write_until))
        elif why is not None:
            kept[row.id] = _Outcome(_T.KEPT, why)
        else:
            groups[row.source, row.owner].append(row)
    yield [row for row in claimed.rows if row.id in kept], kept
    for (site, owner), rows in groups.items():
        try:
            yield rows, _removed(stageout, site, stageout.place(site, owner), rows, held)
        except NightshiftError as error:
            yield rows, {row.id: _postponed(error) for row in rows}


def _removed(
    stageout: Stageout,
    site: str,
    place: SitePlace,
    rows: Sequence[Transfer],
    held: Callable[[Collection[int]], Collection[int]],
) -> dict[int, _Outcome]:
    """Remove the sources that are still what was copied, whose copies are still what was verified, and that no other
    transfer needs.

    Rows that another process has by now have no outcome: their sources may be removed, and written again, since.
    """
    needed = needed_sources(stageout, site, [row.source_name for row in rows])
    outcomes = {
        row.id: _Outcome(None, f"transfer {needed[row.source_name]} needs the same source")
        for row in rows if row.source_name in needed
    }  # fmt: skip
    free = [row for row in rows if row.source_name not in needed]
    sources = _looked(place, stageout.site(site), {row.id: row.source_name for row in free}, free)
    outcomes |= {row.id: seen for row in free if (seen := _seen(row, sources[row.id])) is not None}
    ours = held([row.id for row in free if row.id not in outcomes])
    copies: defaultdict[str, list[Transfer]] = defaultdict(list)
    for row in free:
        if row.id not in outcomes and row.id in ours:
            copies[row.destination].append(row)
    for destination, theirs in copies.items():
        outcomes |= _lost(stageout, destination, theirs)
    ours = held([row.id for row in free if row.id not in outcomes and row.id in ours])
    wanted = [row for row in free if row.id not in outcomes and row.id in ours]
    gone = place.remove([row.source_name for row in wanted])
    return outcomes | {row.id: _after(gone[row.source_name]) for row in wanted}


def needed_sources(stageout: Stageout, site: str, names: Sequence[str]) -> Mapping[str, int]:
    """The files of a site that a transfer needs as its source: it may still be copied, or a person keeps the source.

    By name, with the id of one such transfer.
    """
    transfers, queues = stageout_transfers.c, stageout_queues.c
    query = (
        select(transfers.source_name, transfers.id, queues.source)
        .join(stageout_queues, transfers.queue == queues.id)
        .where(
            or_(
                transfers.state.not_in([state.value for state in DONE_WITH_SOURCE]),
                and_(transfers.kept_by.is_not(None), transfers.state != _T.CLEANED.value),
            )
        )
    )
    with reading(stageout.ledger) as connection:
        return {
            row.source_name: row.id
            for row in rows_in(connection, query, transfers.source_name, names)
            if is_same_file(stageout.sites, row.source_name, row.source, site)
        }


def _looked(
    place: SitePlace, site: RemoteSite, names: Mapping[int, str], rows: Sequence[Transfer]
) -> dict[int, FileAnswer]:
    """Return what a storage has of files, with the sum that is in the row where the site reports such sums."""
    answers: dict[int, FileAnswer] = {}
    summed = {row.id for row in rows if row.checksum and row.checksum.partition(":")[0] == site.checksum.value}
    for mode, ids in ((site.checksum, summed), (ChecksumMode.NONE, names.keys() - summed)):
        asked = {number: names[number] for number in sorted(ids)}
        found = place.look(list(asked.values()), checksum=mode) if asked else {}
        answers |= {number: found[name] for number, name in asked.items()}
    return answers


def _seen(row: Transfer, answer: FileAnswer) -> _Outcome | None:
    """The outcome that the state of the source decides; None: it is to be removed."""
    if answer is None:
        return _Outcome(_T.CLEANED, "the source does not exist")
    if not isinstance(answer, FileFacts):
        return _refused(answer, FailureScope.SOURCE)
    changed = _difference(row, answer, FTS_TIME)
    return None if changed is None else _Outcome(_T.KEPT, f"the source has changed since it was copied: {changed}")


def _lost(stageout: Stageout, site: str, rows: Sequence[Transfer]) -> dict[int, _Outcome]:
    """The outcomes of sources whose copies are not, or cannot be seen to be, what was verified."""
    names = {row.id: row.destination_name for row in rows}
    try:
        answers = _looked(stageout.place(site, rows[0].owner), stageout.site(site), names, rows)
    except NightshiftError as error:
        return {row.id: _postponed(error) for row in rows}
    outcomes: dict[int, _Outcome] = {}
    for row in rows:
        answer = answers[row.id]
        if answer is None:
            outcomes[row.id] = _Outcome(_T.KEPT, "the copy does not exist at the destination any more")
        elif not isinstance(answer, FileFacts):
            outcomes[row.id] = _refused(answer, FailureScope.DESTINATION)
        elif (changed := _difference(row, answer, CLOCKS)) is not None:
            outcomes[row.id] = _Outcome(_T.KEPT, f"the copy is not what was verified: {changed}")
    return outcomes


def _difference(row: Transfer, facts: FileFacts, margin: timedelta) -> str | None:
    """Say what differs of a file from the size and checksum in the row, or that it was written after the copy.

    `margin`: how long after the end of the copy its storage may say that the file was written.
    """
    if row.size is not None and facts.size != row.size:
        return f"{facts.size} bytes, not {row.size}"
    algorithm = (row.checksum or "").partition(":")[0]
    if facts.checksum is not None and facts.checksum.partition(":")[0] == algorithm and facts.checksum != row.checksum:
        return f"{facts.checksum}, not {row.checksum}"
    if facts.checksum is None and facts.modified is not None and row.copied_at is not None:
        # its bytes are not compared: it may be another file of the same size
        later = facts.modified >= row.copied_at + margin
        return f"it was written at {facts.modified:%Y-%m-%d %H:%M:%S} UTC" if later else None
    return None


def _after(failure: FailureReason | None) -> _Outcome:
    return _Outcome(_T.CLEANED, "the source was removed") if failure is None else _refused(failure, FailureScope.SOURCE)


def _refused(failure: FailureReason, scope: FailureScope) -> _Outcome:
    return _Outcome(None, replace(failure, scope=scope).format())


def _postponed(error: NightshiftError) -> _Outcome:
    return _Outcome(None, str(error), held=error.code == SITE_FAILED.code)


def _record(
    stageout: Stageout, claim: str, rows: Sequence[Transfer], outcomes: Mapping[int, _Outcome], now: datetime
) -> Counter[TransferState | None]:
    moves: list[TransferMove] = []
    waits: dict[int, timedelta] = {}
    for row in rows:
        outcome = outcomes.get(row.id)
        if outcome is None:
            continue
        wait = HELD_WAIT if outcome.held else removal_wait(now - row.moved_at)
        if outcome.to is not None:
            moves.append(TransferMove(row.id, _T.CLEANING, outcome.to, outcome.reason))
        elif wait is None:
            moves.append(TransferMove(row.id, _T.CLEANING, _T.KEPT, f"given up: {outcome.reason}"))
        else:
            waits[row.id] = wait
    moved = move_transfers(stageout.ledger, moves, _CLEANER, now=now, claim=claim)
    reasons = {number: outcomes[number].reason for number in waits}
    look_again(stageout.ledger, stageout_transfers, waits, claim, now=now, reasons=reasons)
    return Counter([*(move.to for move in moves if move.id in moved), *(None for _ in waits)])
