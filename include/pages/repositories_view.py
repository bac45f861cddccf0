"""The contents of the page *Repositories*: revisions, days, figures of Plotly. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from include.pages.charts import bars, figure, line
from include.pages.registry import provenance, run_of, task_of
from include.provenance.records import ChangeKind
from include.replicas.states import ReplicaLook, ReplicaState


@dataclass(frozen=True, slots=True)
class CollectionRow:
    """A collection that ended. `garbage`: objects that it condemned and left."""

    ended_at: datetime
    kept: int
    deleted: int
    bytes_deleted: int
    garbage: int
    lost: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RevisionSize:
    """The sums over a revision that the store still has."""

    at: datetime
    revision: int
    files: int
    bytes: int
    catalogs: int


SOON_DAYS = 7
"""A whitelist that ends within so many days is marked."""
_REPLICA_KINDS = {ReplicaState.IN_SYNC: "good", ReplicaState.BEHIND: "wait", ReplicaState.SNAPSHOT: "busy"}


@dataclass(slots=True)
class PublishedSum:
    """Figures of published artifacts together; what was not counted adds nothing."""

    artifacts: int = 0
    files: int = 0
    bytes: int = 0
    uploaded: int = 0
    objects_new: int = 0
    objects_reused: int = 0

    def add(self, row: Any) -> None:
        """Add a publication, a row of the ledger."""
        self.artifacts += 1
        self.files += row.files or 0
        self.bytes += row.bytes or 0
        self.uploaded += row.bytes_uploaded or 0
        self.objects_new += row.objects_new or 0
        self.objects_reused += row.objects_reused or 0

    @property
    def reused(self) -> float | None:
        """The share of objects that were stored already; None where none was counted."""
        objects = self.objects_new + self.objects_reused
        return self.objects_reused / objects if objects else None


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """The changes of a revision, and who made it. `published`: None where no artifact was published by it."""

    revision: int
    at: datetime
    changes: Counter[str]
    path: str
    path_url: str
    run: str
    run_url: str
    task_url: str
    published: PublishedSum | None


def revisions_of(
    fqrn: str, changes: Sequence[Any], published: Iterable[Any], *, whole: bool, limit: int = 15
) -> list[RevisionRow]:
    """Changes by revision, the newest first.

    Args:
        fqrn: The repository.
        changes: Rows of changed paths, by revision, the newest first.
        published: Rows of published artifacts.
        whole: Whether these are all changes; else the oldest revision may lack some, and is left out.
        limit: How many revisions.
    """
    sums: dict[int, PublishedSum] = {}
    for row in published:
        if row.revision_after is not None:
            sums.setdefault(row.revision_after, PublishedSum()).add(row)
    by_revision: dict[int, list[Any]] = {}
    for row in changes:
        by_revision.setdefault(row.revision, []).append(row)
    if not whole and len(by_revision) > 1:
        del by_revision[next(reversed(by_revision))]
    lines = []
    for revision, rows in list(by_revision.items())[:limit]:
        first = rows[0]
        lines.append(
            RevisionRow(
                revision, min(row.published_at for row in rows),
                Counter(ChangeKind(row.kind or ChangeKind.TREE).value for row in rows), first.path,
                provenance(fqrn, first.path), first.run_id, run_of(first.run_id), task_of(first.holder, first.run_id),
                sums.get(revision),
            )
        )  # fmt: skip
    return lines


def days_of(published: Sequence[Any], *, whole: bool) -> list[tuple[date, PublishedSum]]:
    """Published artifacts by day in UTC, the oldest first. `whole`: as for `revisions_of`, of the oldest day."""
    sums: dict[date, PublishedSum] = {}
    for row in published:
        sums.setdefault(row.updated_at.date(), PublishedSum()).add(row)
    days = sorted(sums)
    if not whole and len(days) > 1:
        days = days[1:]
    return [(day, sums[day]) for day in days]


def revision_figure(points: Sequence[tuple[datetime, int]]) -> dict[str, Any]:
    """Revisions over time."""
    times, revisions = [at for at, _ in points], [revision for _, revision in points]
    return figure("Revision", [line("revision", times, revisions, shape="hv")], whole=True, from_zero=False)


def size_figure(days: Sequence[tuple[date, PublishedSum]]) -> dict[str, Any]:
    """Bytes of what was published by day: what was sent to the store, and what it had."""
    dates = [day for day, _ in days]
    sent = [figures.uploaded for _, figures in days]
    had = [max(figures.bytes - figures.uploaded, 0) for _, figures in days]
    return figure("Bytes", [bars("sent to the store", dates, sent), bars("not sent", dates, had)], unit="B")


def growth_figure(sizes: Sequence[RevisionSize], rows: Sequence[CollectionRow]) -> dict[str, Any]:
    """Bytes of a repository over time, the oldest revision first, with the collections that ended meanwhile."""
    times, values = [size.at for size in sizes], [size.bytes for size in sizes]
    traces = [line("size", times, values, shape="hv")]
    meanwhile = sorted(row.ended_at for row in rows if times[0] <= row.ended_at <= times[-1])
    if meanwhile:
        at = [[size.bytes for size in sizes if size.at <= ended][-1] for ended in meanwhile]
        marks = line("collection ended", meanwhile, at)
        traces.append(marks | {"mode": "markers", "marker": {"symbol": "x", "size": 9, "color": "#a16207"}})
    return figure("Bytes of all files", traces, unit="B")


def object_figure(rows: Sequence[CollectionRow]) -> dict[str, Any]:
    """Objects in the store after each collection, and what it deleted."""
    ordered = sorted(rows, key=lambda row: row.ended_at)
    times = [row.ended_at for row in ordered]
    return figure(
        "Objects",
        [
            line("kept", times, [row.kept for row in ordered]),
            line("garbage left", times, [row.garbage for row in ordered]),
            line("deleted", times, [row.deleted for row in ordered]),
        ],
        whole=True,
    )


def replica_kind(look: ReplicaLook) -> str:
    """The style of a replica's state."""
    return _REPLICA_KINDS.get(look.state, "bad")


def worst(looks: Sequence[ReplicaLook]) -> ReplicaLook | None:
    """The replica that lags most, one that is not trusted before all others."""
    return max(looks, key=lambda look: (not look.state.trusted, look.lag), default=None)


def whitelist_kind(expires: datetime, now: datetime) -> str:
    """The style of a whitelist's end."""
    days = (expires - now).total_seconds() / 86400
    return "bad" if days < 1 else "wait" if days < SOON_DAYS else "good"
