"""Progress of running preparations, for those who watch a night; final figures are in the publication itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.ledger.engine import Bind, reading, writing
from include.ledger.errors import LedgerError
from include.nightlies.records.tables import progress, publications
from include.nightlies.rules.publication import State

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotedProgress:
    """Progress of a preparation. `publication`: its row; sizes in bytes, of what was read and of what was sent."""

    publication: int
    try_number: int
    began_at: datetime
    files: int
    bytes: int
    bytes_uploaded: int
    noted_at: datetime


def note(bind: Bind, seen: NotedProgress) -> None:
    """Replace what is recorded of the publication. A ledger that does not answer stops no preparation."""
    where = progress.c.publication == seen.publication

    def work(connection: Connection) -> None:
        if connection.execute(update(progress).where(where).values(**asdict(seen))).rowcount:
            return
        try:
            with connection.begin_nested():
                connection.execute(insert(progress).values(**asdict(seen)))
        except IntegrityError:
            connection.execute(update(progress).where(where).values(**asdict(seen)))

    try:
        writing(bind, work)
    except LedgerError as error:
        log.info("the progress of publication %d is not recorded: %s", seen.publication, error)


def forget(bind: Bind, publication: int) -> None:
    """Remove it: the preparation has ended."""
    statement = delete(progress).where(progress.c.publication == publication)
    try:
        writing(bind, lambda connection: connection.execute(statement))
    except LedgerError as error:
        log.info("the progress of publication %d is not removed: %s", publication, error)


def of_publications(bind: Bind, ids: Sequence[int]) -> dict[int, NotedProgress]:
    """By publication, for those that are being prepared at the moment by the try that recorded it."""
    running = (publications.c.state == State.PREPARING.value, publications.c.prepare_try == progress.c.try_number)
    query = (
        select(progress)
        .join(publications, progress.c.publication == publications.c.id)
        .where(progress.c.publication.in_(ids), *running)
    )
    if not ids:
        return {}
    with reading(bind) as connection:
        rows = connection.execute(query).mappings().all()
    return {row["publication"]: NotedProgress(**row) for row in rows}
