"""What the page *Repositories* reads from the ledger. Every query reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select

from include.care.provenance.tables import provenance
from include.ledger.engine import Bind, reading
from include.nightlies.records.links import TAG, LinkRecord
from include.nightlies.records.tables import collections, damaged, links, publications
from include.nightlies.rules.states import State

CHANGES = 300
"""So many of the newest changes of paths are read for the table of revisions."""
POINTS = 400
"""Revisions of the plot at most, evenly spaced over all."""
PUBLISHED = 2000
"""So many of the newest published artifacts are read for what was reused."""
COLLECTIONS = 60
LINKS = 20_000
"""So many of the newest decisions about links and tags are searched for tags of the repository."""
TAGS = 50


@dataclass(frozen=True, slots=True)
class CollectionRow:
    """One collection that ended. `garbage`: objects that it condemned and left."""

    ended_at: datetime
    kept: int
    deleted: int
    bytes_deleted: int
    garbage: int
    lost: int
    seconds: float


def newest_change(bind: Bind, fqrn: str) -> tuple[int, datetime] | None:
    """The newest revision that was published through Nightshift, and when."""
    query = (
        select(provenance.c.revision, provenance.c.published_at)
        .where(provenance.c.repository == fqrn)
        .order_by(provenance.c.revision.desc())
        .limit(1)
    )
    with reading(bind) as connection:
        row = connection.execute(query).first()
    return None if row is None else (row.revision, row.published_at)


def newest_changes(bind: Bind, fqrn: str, *, limit: int = CHANGES) -> Sequence[Row[Any]]:
    """Changes of paths, those of the newest revision first."""
    names = ("revision", "path", "kind", "run_id", "holder", "published_at")
    query = (
        select(*(provenance.c[name] for name in names))
        .where(provenance.c.repository == fqrn)
        .order_by(provenance.c.revision.desc(), provenance.c.id.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return connection.execute(query).all()


def revisions_over_time(bind: Bind, fqrn: str, *, points: int = POINTS) -> list[tuple[datetime, int]]:
    """Revisions with their times, evenly spaced from the first to the newest, the oldest first."""
    of_repository, revision = provenance.c.repository == fqrn, provenance.c.revision
    with reading(bind) as connection:
        # two queries: each is one look into the index
        first = connection.scalar(select(func.min(revision)).where(of_repository))
        last = connection.scalar(select(func.max(revision)).where(of_repository))
        if first is None or last is None:
            return []
        step = max(1, -(-(last - first + 1) // points))
        at = func.min(provenance.c.published_at).label("at")
        chosen = select(revision, at).where(of_repository, revision.in_(range(last, first - 1, -step)))
        rows = connection.execute(chosen.group_by(revision)).all()
    return sorted((row.at, row.revision) for row in rows)


def newest_published(bind: Bind, fqrn: str, *, limit: int = PUBLISHED) -> Sequence[Row[Any]]:
    """Figures of what was published last, the newest first."""
    names = ("revision_after", "files", "bytes", "bytes_uploaded", "objects_new", "objects_reused", "updated_at")
    query = (
        select(*(publications.c[name] for name in names))
        .where(publications.c.repository == fqrn, publications.c.state == State.PUBLISHED.value)
        .order_by(publications.c.id.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return connection.execute(query).all()


def newest_tags(bind: Bind, fqrn: str) -> list[LinkRecord]:
    """What was decided last of each tag, the newest first."""
    with reading(bind) as connection:
        newest = connection.scalar(select(func.max(links.c.id))) or 0
        query = (
            select(links)
            .where(links.c.id > newest - LINKS, links.c.kind == TAG, links.c.repository == fqrn)
            .order_by(links.c.id.desc())
            .limit(TAGS)
        )
        rows = connection.execute(query).mappings().all()
    found: dict[str, LinkRecord] = {}
    for row in rows:
        found.setdefault(row["path"], LinkRecord(**{name: row[name] for name in LinkRecord.__slots__}))
    return list(found.values())


def newest_collections(bind: Bind, fqrn: str, *, limit: int = COLLECTIONS) -> list[CollectionRow]:
    """Collections of a repository, the newest first."""
    query = (
        select(*(collections.c[name] for name in CollectionRow.__slots__))
        .where(collections.c.repository == fqrn)
        .order_by(collections.c.ended_at.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return [CollectionRow(**row) for row in connection.execute(query).mappings()]


def damaged_objects(bind: Bind, fqrn: str) -> int:
    """How many objects the repository needs and its store lost."""
    with reading(bind) as connection:
        return connection.scalar(select(func.count()).where(damaged.c.repository == fqrn)) or 0
