"""What the page *Publications* reads from the ledger. Every query reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from include.ledger.engine import Bind, reading
from include.nightlies.records.tables import artifacts, builds, publications
from include.nightlies.rules.states import State

PAGE = 50
"""Publications of one page of the history."""
NEWEST = 3000
"""So many of the newest publications are read for the figures."""
_SHOWN = (
    "id", "run_id", "repository", "destination", "state", "phase", "reason", "code", "holder", "try_number", "files",
    "bytes", "bytes_uploaded", "seconds", "lease_held_s", "revision_after", "updated_at",
)  # fmt: skip
_FIGURES = (
    "state", "code", "files", "bytes", "bytes_uploaded", "objects_new", "objects_reused", "seconds",
    "lease_held_s", "created_at", "updated_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which publications are asked for; None: any. A `code` is that of an error, and so only failed ones have it."""

    repository: str | None = None
    state: State | None = None
    code: str | None = None

    def where(self, query: Select[Any], repository: str, state: State) -> Select[Any]:
        """The query, for one repository and state: each pair is one range of an index, in the order of rows."""
        query = query.where(publications.c.repository == repository, publications.c.state == state.value)
        return query if self.code is None else query.where(publications.c.code == self.code)


def newest(
    bind: Bind, chosen: Chosen, *, known: Sequence[str], below: int | None = None, limit: int = PAGE
) -> Sequence[Row[Any]]:
    """Publications with their artifacts and builds, the newest first.

    Args:
        bind: The ledger.
        chosen: Which.
        known: The configured repositories, for a choice that names none.
        below: Only those before this row.
        limit: How many.
    """
    with reading(bind) as connection:
        ids = _ids(connection, chosen, known=known, below=below, limit=limit)
        query: Select[Any] = (
            select(
                *(publications.c[name] for name in _SHOWN),
                artifacts.c.project,
                artifacts.c.platform,
                artifacts.c.url,
                builds.c.slot,
                builds.c.build_id,
                builds.c.build_date,
            )
            .outerjoin(artifacts, publications.c.artifact == artifacts.c.id)
            .outerjoin(builds, artifacts.c.build == builds.c.id)
            .where(publications.c.id.in_(ids))
            .order_by(publications.c.id.desc())
        )
        return connection.execute(query).all()


def _ids(
    connection: Connection, chosen: Chosen, *, known: Sequence[str], below: int | None, limit: int
) -> Sequence[int]:
    query = select(publications.c.id).order_by(publications.c.id.desc()).limit(limit)
    if below is not None:
        query = query.where(publications.c.id < below)
    if chosen == Chosen():
        return connection.scalars(query).all()
    states = [State.FAILED] if chosen.code else [chosen.state] if chosen.state else list(State)
    found: list[int] = []
    for repository in [chosen.repository] if chosen.repository else known:
        for state in states:
            found += connection.scalars(chosen.where(query, repository, state)).all()
    return sorted(found, reverse=True)[:limit]


def newest_figures(bind: Bind, repository: str | None, *, limit: int = NEWEST) -> Sequence[Row[Any]]:
    """Figures of the newest publications of all repositories, or of those among them of one."""
    query = select(*(publications.c[name] for name in _FIGURES)).order_by(publications.c.id.desc())
    if repository is not None:
        query = query.where(publications.c.repository == repository)
    with reading(bind) as connection:
        last = connection.scalar(select(func.max(publications.c.id))) or 0
        return connection.execute(query.where(publications.c.id > last - limit)).all()
