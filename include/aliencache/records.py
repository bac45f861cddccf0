"""Looks, warms, trims and verifications of caches in the ledger; what the page *Caches*, metrics and alerts read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Boolean, Column, Connection, Index, Table, delete, func, insert, select

from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text, metadata

KEPT = 500
"""Runs of a cache and kind that the ledger keeps."""

cache_runs = Table(
    "cache_runs",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("cache", exact(128), nullable=False),
    Column("kind", exact(16), nullable=False),
    Column("ended_at", UtcTime, nullable=False),
    Column("dry_run", Boolean, nullable=False),
    Column("document", long_text(), nullable=False),
    Index(None, "cache", "kind", "ended_at"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)


class CacheRunKind(Enum):
    """Kinds of work on a cache."""

    LOOK = "look"
    WARM = "warm"
    TRIM = "trim"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class CacheRun:
    """A run that ended, with its report as a document."""

    cache: str
    kind: CacheRunKind
    ended_at: datetime
    dry_run: bool
    report: dict[str, Any]


def note_cache_run(bind: Bind, run: CacheRun) -> None:
    """Record a run; the oldest of its cache and kind goes when there are too many."""
    row = {
        "cache": run.cache, "kind": run.kind.value, "ended_at": run.ended_at, "dry_run": run.dry_run,
        "document": json.dumps(run.report),
    }  # fmt: skip
    same = (cache_runs.c.cache == run.cache, cache_runs.c.kind == run.kind.value)

    def work(connection: Connection) -> None:
        connection.execute(insert(cache_runs).values(row))
        past = select(cache_runs.c.id).where(*same).order_by(cache_runs.c.id.desc()).offset(KEPT).limit(1)
        oldest = connection.scalar(past)
        if oldest is not None:
            connection.execute(delete(cache_runs).where(*same, cache_runs.c.id <= oldest))

    writing(bind, work)


def cache_runs_of(bind: Bind, cache: str, kind: CacheRunKind, *, limit: int = 20) -> list[CacheRun]:
    """The last runs of a kind, the newest first; dry runs too."""
    query = (
        select(cache_runs)
        .where(cache_runs.c.cache == cache, cache_runs.c.kind == kind.value)
        .order_by(cache_runs.c.id.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return [
            CacheRun(
                row["cache"], CacheRunKind(row["kind"]), row["ended_at"], row["dry_run"], json.loads(row["document"])
            )
            for row in connection.execute(query).mappings()
        ]


def last_runs(connection: Connection, kind: CacheRunKind) -> dict[str, CacheRun]:
    """The last run of a kind of each cache, dry runs apart."""
    newest = (
        select(func.max(cache_runs.c.id))
        .where(cache_runs.c.kind == kind.value, cache_runs.c.dry_run.is_(False))
        .group_by(cache_runs.c.cache)
    )
    rows = connection.execute(select(cache_runs).where(cache_runs.c.id.in_(newest))).mappings()
    return {
        row["cache"]: CacheRun(row["cache"], kind, row["ended_at"], row["dry_run"], json.loads(row["document"]))
        for row in rows
    }
