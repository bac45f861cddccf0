"""Directories that a run created above its destinations: removed with the last destination that is not published.

Noted before they are committed, so that a run that dies right after it knows them too.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from include.ledger.engine import Bind, reading, writing
from include.nightlies.records.publications import place
from include.nightlies.records.tables import created


def note(bind: Bind, run: str, fqrn: str, paths: Iterable[str], *, now: datetime) -> None:
    """Remember that the run creates these; again changes nothing."""
    wanted = dict.fromkeys(paths)

    def work(connection: Connection) -> None:
        known = set(of_run(connection, run, fqrn))
        rows = [
            {"run_id": run, "place": place(fqrn, path), "repository": fqrn, "path": path, "noted_at": now}
            for path in wanted
            if path not in known
        ]
        if rows:
            connection.execute(insert(created), rows)

    writing(bind, work)


def of_run(bind: Bind, run: str, fqrn: str) -> tuple[str, ...]:
    """What the run created in a repository, by path."""
    query = select(created.c.path).where(created.c.run_id == run, created.c.repository == fqrn)
    with reading(bind) as connection:
        return tuple(sorted(connection.scalars(query)))


def forget(bind: Bind, run: str, fqrn: str) -> None:
    """Forget what the run created, so that what exists now stays."""
    where = (created.c.run_id == run, created.c.repository == fqrn)

    def work(connection: Connection) -> None:
        connection.execute(delete(created).where(*where))

    writing(bind, work)
