"""The catalogue of files of data sets: one interface, and the ledger's own tables behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection, delete, exists, select

from include.ledger.engine import Bind, reading, writing
from include.stageout.files import digest_of
from include.stageout.requests import insert_new, pieces, rows_in
from include.stageout.tables import stageout_blocks, stageout_catalogue, stageout_queues, stageout_transfers


@dataclass(frozen=True, slots=True)
class CatalogueBlock:
    """Files of one data set that are registered together. Its name is fixed before the catalogue is called."""

    name: str
    dataset: str
    owner: str
    workflow: str


@dataclass(frozen=True, slots=True)
class CatalogueFile:
    """A file as it was verified at its destination; `id`: its transfer."""

    id: int
    name: str
    site: str
    size: int
    checksum: str | None


class Catalogue(Protocol):
    """A catalogue of data sets."""

    def register(self, block: CatalogueBlock, files: Sequence[CatalogueFile], *, now: datetime) -> Mapping[int, str]:
        """Register the files of a block. The same call again changes nothing and returns the same.

        A file that the data set has already with the same size and checksum is registered.

        Returns the reason of each file that is refused, by id; the others are registered. Raises NightshiftError: the
        catalogue cannot be asked; the same call is made later.
        """

    def retract(self, block: CatalogueBlock, files: Sequence[CatalogueFile]) -> Mapping[int, str]:
        """Take the copies of files out again; what the catalogue does not have counts as taken out.

        A file that the catalogue has at another site, too, stays there. `block`: its name is that of no block once its
        files are archived. Returns and raises as `register`.
        """


@dataclass(frozen=True, slots=True)
class LedgerCatalogue:
    """The catalogue in the ledger's own tables."""

    ledger: Bind

    def register(self, block: CatalogueBlock, files: Sequence[CatalogueFile], *, now: datetime) -> Mapping[int, str]:
        """See `Catalogue`."""
        digests = {file.id: digest_of(block.dataset, file.name) for file in files}
        # one name may be at two sites: the first of both is registered
        wanted = {digests[file.id]: file for file in reversed(files)}

        def work(connection: Connection) -> dict[int, str]:
            known = _known(connection, sorted(wanted))
            # in one order: two processes that insert the same wait for each other, and do not deadlock
            missing = sorted(wanted.keys() - known.keys())
            for piece in pieces(missing):
                rows = [_row(block, digest, wanted[digest], now) for digest in piece]
                # what another process inserts in this moment is read again below
                connection.execute(insert_new(stageout_catalogue), rows)
            known |= _known(connection, missing)
            return {
                file.id: _other(known[digests[file.id]])
                for file in files
                if known[digests[file.id]] != (file.size, file.checksum)
            }

        return writing(self.ledger, work)

    def retract(self, block: CatalogueBlock, files: Sequence[CatalogueFile]) -> Mapping[int, str]:
        """See `Catalogue`."""
        columns = stageout_catalogue.c

        def work(connection: Connection) -> None:
            for file in sorted(files, key=lambda file: file.name):
                which = (columns.digest == digest_of(block.dataset, file.name), columns.site == file.site)
                connection.execute(delete(stageout_catalogue).where(*which))

        writing(self.ledger, work)
        return {}


def registered_blocks(ledger: Bind, *, since: datetime) -> Iterator[tuple[CatalogueBlock, tuple[CatalogueFile, ...]]]:
    """Give the blocks with files that were registered in the ledger's catalogue from a time on, each with all of them.

    The ids are those of the rows here.
    """
    blocks, columns = stageout_blocks.c, stageout_catalogue.c
    query = select(blocks.id, blocks.name, blocks.dataset, blocks.owner, blocks.workflow)
    registered = (blocks.state == "registered", blocks.moved_at >= since)
    last = 0
    while True:
        with reading(ledger) as connection:
            row = connection.execute(
                query.where(*registered, blocks.id > last).order_by(blocks.id).limit(1)
            ).one_or_none()
            if row is None:
                return
            files = connection.execute(select(stageout_catalogue).where(columns.block == row.name)).all()
        last = row.id
        if files:
            block = CatalogueBlock(row.name, row.dataset, row.owner, row.workflow)
            yield block, tuple(CatalogueFile(file.id, file.name, file.site, file.size, file.checksum) for file in files)


def owners_to_register(ledger: Bind) -> tuple[str, ...]:
    """The users with files on the way that are to be registered, in order."""
    columns = stageout_transfers.c
    query = (
        select(stageout_queues.c.owner)
        .distinct()
        .where(exists().where(columns.queue == stageout_queues.c.id, columns.dataset.is_not(None)))
        .order_by(stageout_queues.c.owner)
    )
    with reading(ledger) as connection:
        return tuple(connection.scalars(query))


def _known(connection: Connection, digests: Sequence[str]) -> dict[str, tuple[int, str | None]]:
    """Size and checksum of what the catalogue has of these."""
    columns = stageout_catalogue.c
    query = select(columns.digest, columns.size, columns.checksum)
    rows = rows_in(connection, query, columns.digest, digests)
    return {row.digest: (row.size, row.checksum) for row in rows}


def _row(block: CatalogueBlock, digest: str, file: CatalogueFile, now: datetime) -> dict[str, object]:
    return {
        "digest": digest,
        "dataset": block.dataset,
        "name": file.name,
        "site": file.site,
        "size": file.size,
        "checksum": file.checksum,
        "block": block.name,
        "registered_at": now,
    }


def _other(known: tuple[int, str | None]) -> str:
    size, checksum = known
    return f"the data set has another file of this name, of {size} bytes and checksum {checksum or 'unknown'}"
