"""The register: verified files are registered by blocks in the catalogue; files without a data set may be cleaned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine

from include.errors import NightshiftError
from include.stageout import blocks as filling
from include.stageout.moves import TransferMove
from include.stageout.opening import Stageout
from include.stageout.registration.catalogue import Catalogue, CatalogueFile, LedgerCatalogue, registered_blocks
from include.stageout.retry import TransferFailureClass
from include.stageout.states import TransferState

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
