"""The register: verified files are registered by blocks in the catalogue; files without a data set may be cleaned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine

from include.errors import NightshiftError
from include.ledger.acts import Act, ActKind, named, note_act
from include.stageout import blocks as filling
from include.stageout.archive import ended_files, retract_archived
from include.stageout.components.cleaner import needed_sources
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.opening import Stageout
from include.stageout.registration.catalogue import (
    Catalogue,
    CatalogueBlock,
    CatalogueFile,
    LedgerCatalogue,
    registered_blocks,
)
from include.stageout.retry import TransferFailureClass
from include.stageout.states import StageoutComponent, TransferState

LATER = timedelta(minutes=5)
"""A catalogue that cannot be asked is asked again then."""


@dataclass(frozen=True, slots=True)
class RegisterReport:
    """The work of one pass. Nothing was due if all are 0.

    Attributes:
        placed: Files that were put into blocks, and those found in one already.
        unregistered: Files without a data set, which may be cleaned.
        closed: Blocks that were closed.
        blocks: Blocks that the catalogue has taken.
        registered: Files that are registered.
        refused: Files that the catalogue refused.
        postponed: Blocks whose catalogue could not be asked.
    """

    placed: int = 0
    unregistered: int = 0
    closed: int = 0
    blocks: int = 0
    registered: int = 0
    refused: int = 0
    postponed: int = 0


def register(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> RegisterReport:
    """Return one bounded pass: put verified files into blocks, close blocks, register closed ones.

    `limit`: how many files are put into blocks, and about how many are registered, at most.
    """
    limits = filling.BlockLimits(stageout.settings.block_files, timedelta(minutes=stageout.settings.block_minutes))
    placed = filling.place_files(stageout.ledger, limits, limit=limit, now=now())
    blocks = max(1, limit // limits.files)
    closed = placed.closed + filling.close_old_blocks(stageout.ledger, limit=blocks, now=now())
    taken = postponed = registered = refused = 0
    for _ in range(blocks):
        # one at a time: a claim lasts as long as one call of the catalogue may
        claimed = next(iter(filling.claim_blocks(stageout.ledger, stageout.worker, limit=1, now=now())), None)
        if claimed is None:
            break
        moves = _register_block(stageout, claimed, now)
        if moves is None:
            postponed += 1
            continue
        moved = filling.finish_block(stageout.ledger, claimed, moves, now=now())
        taken += 1
        registered += sum(move.to is TransferState.REGISTERED for move in moves if move.id in moved)
        refused += sum(move.to is TransferState.FAILED for move in moves if move.id in moved)
    return RegisterReport(
        placed.placed + placed.late, placed.unregistered, closed, taken, registered, refused, postponed
    )  # fmt: skip


def _register_block(
    stageout: Stageout, claimed: filling.ClaimedBlock, now: Callable[[], datetime]
) -> tuple[TransferMove, ...] | None:
    """The moves of the block's files; None: the catalogue could not be asked, and the block waits."""
    catalogue = stageout.catalogue or LedgerCatalogue(stageout.ledger)
    rows = filling.files_of_block(stageout.ledger, claimed.id)
    files = [
        CatalogueFile(row.id, row.destination_name, row.destination, row.size, row.checksum)
        for row in rows
        if row.size is not None
    ]
    try:
        refusals = catalogue.register(claimed.block, files, now=now()) if files else {}
    except NightshiftError as error:
        filling.postpone_block(stageout.ledger, claimed, str(error), now=now(), until=now() + LATER)
        return None
    moves = []
    for row in rows:
        reason = "its size is not known" if row.size is None else refusals.get(row.id)
        to = TransferState.FAILED if reason else TransferState.REGISTERED
        what = f"the catalogue refused it: {reason}" if reason else f"registered in block {claimed.block.name}"
        failure = TransferFailureClass.REGISTRATION if reason else None
        moves.append(TransferMove(row.id, TransferState.DONE, to, what, failure=failure))
    return tuple(moves)


RETRACTABLE = (TransferState.REGISTERED, TransferState.CLEANED, TransferState.KEPT, TransferState.RETRACTED)


@dataclass(frozen=True, slots=True)
class Retraction:
    """Registered files that are taken out of the catalogue, or would be.

    Attributes:
        files: By the ids of their transfers.
        refusals: Why others are not, by id.
        left: Why copies could not be removed, by id.
    """

    files: Mapping[int, CatalogueFile]
    refusals: Mapping[int, str]
    left: Mapping[int, str]


def retract(
    stageout: Stageout,
    ids: Collection[int],
    *,
    owner: str,
    by: str,
    why: str,
    now: datetime,
    removes: bool = False,
    dry_run: bool = False,
) -> Retraction:
    """Take registered files out of the catalogue: first there, then in the ledger, and last their copies, if wanted.

    The same call again ends what one before has begun. `removes`: whether the copies are removed at their sites, with
    the credential of `owner`. Raises as the catalogue does; blocks before that are retracted.
    """
    ended, newer = ended_files(stageout.ledger, owner, ids)
    refusals = {number: f"{owner} has no such transfer" for number in ids if number not in ended}
    blocks: defaultdict[CatalogueBlock, list[int]] = defaultdict(list)
    for number, each in ended.items():
        if each.state not in RETRACTABLE:
            refusals[number] = f"it is {each.state.value}"
        elif each.block is None or each.file.size is None:
            refusals[number] = "it is in no data set"
        elif number in newer:
            refusals[number] = f"transfer {newer[number]} has the same destination since"
        else:
            blocks[each.block].append(number)
    files = {number: ended[number].file for numbers in blocks.values() for number in numbers}
    if dry_run:
        return Retraction(files, refusals, {})
    catalogue, reason = stageout.catalogue or LedgerCatalogue(stageout.ledger), f"retracted by {by}: {why}"
    done: list[int] = []
    for block, numbers in blocks.items():
        refusals |= catalogue.retract(block, [files[number] for number in numbers])
        out = {number: ended[number] for number in numbers if number not in refusals}
        moves = [
            TransferMove(number, each.state, TransferState.RETRACTED, reason)
            for number, each in out.items() if not each.archived and each.state is not TransferState.RETRACTED
        ]  # fmt: skip
        moved = move_transfers(stageout.ledger, moves, StageoutComponent.PERSON, now=now)
        retract_archived(
            stageout.ledger, {number: each for number, each in out.items() if each.archived}, reason, now=now
        )
        refusals |= {move.id: "another process has it; run it again" for move in moves if move.id not in moved}
        retracted = [number for number in out if number not in refusals]
        if retracted:
            what = f"{len(retracted)} files of {owner}: {named(files[number].name for number in retracted)}"
            note_act(stageout.ledger, Act(now, ActKind.RETRACTION, what, by, why, dry_run=False))
        done += retracted
    left: dict[int, str] = {}
    for site in sorted({files[number].site for number in done} if removes else ()):
        names = {number: files[number].name for number in done if files[number].site == site}
        needed = needed_sources(stageout, site, list(names.values()))
        failures = stageout.place(site, owner).remove([name for name in names.values() if name not in needed])
        for number, name in names.items():
            if name in needed:
                left[number] = f"transfer {needed[name]} needs it as its source"
            elif (failure := failures[name]) is not None:
                left[number] = failure.text
    return Retraction({number: files[number] for number in done}, refusals, left)


@dataclass(frozen=True, slots=True)
class LateRegistration:
    """A block that the ledger's catalogue has, and another catalogue may have by now. `refusals`: by logical name."""

    block: str
    files: int
    refusals: Mapping[str, str]


def register_again(
    ledger: Engine, catalogue: Catalogue | None, *, since: datetime, now: datetime
) -> Iterator[LateRegistration]:
    """Register in a catalogue what was registered in the ledger's from a time on, block by block.

    The same again changes nothing. Without a catalogue the blocks are told, and nothing is registered. Raises what the
    catalogue does, for the first block that it does not answer for.
    """
    for block, files in registered_blocks(ledger, since=since):
        refusals = catalogue.register(block, files, now=now) if catalogue is not None else {}
        names = {file.id: file.name for file in files}
        yield LateRegistration(block.name, len(files), {names[number]: why for number, why in refusals.items()})
