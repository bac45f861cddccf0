"""Ledger records of links and tags: every decision, in order, with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date, datetime

from sqlalchemy import Connection, insert, select

from include.json_values import JsonValue
from include.ledger.engine import Bind, reading, writing
from include.nightlies.records.publications import place
from include.nightlies.records.tables import links
from include.nightlies.rules.build import BuildKey, LinkState

LINK, TAG = "link", "tag"
_REASON_LENGTH = 4000
_SET = (LinkState.MOVED.value, LinkState.UNCHANGED.value, LinkState.REMOVED.value)


@dataclass(frozen=True, slots=True)
class LinkRecord(JsonValue):
    """Decision. `kind`: link or tag; `path`: of the link, or the tag's name; `build_*`: what it was for."""

    kind: str
    repository: str
    path: str
    slot: str
    build_id: str
    build_date: date
    state: str
    reason: str
    run_id: str
    revision: int | None
    decided_at: datetime

    @property
    def key(self) -> BuildKey:
        return BuildKey(self.build_date, self.build_id)


def record(bind: Bind, decided: Iterable[LinkRecord]) -> None:
    """Record these; one that repeats the one before of the same run is left out."""

    def work(connection: Connection) -> None:
        for link in decided:
            before = next(iter(history(connection, link.repository, link.path, limit=1)), None)
            if before is not None and _same(before, link):
                continue
            values = asdict(link) | {"place": place(link.repository, link.path), "reason": link.reason[:_REASON_LENGTH]}
            connection.execute(insert(links).values(**values))

    writing(bind, work)


def history(bind: Bind, fqrn: str, path: str, *, limit: int = 100) -> tuple[LinkRecord, ...]:
    """Return what was decided of a link or tag, the newest first."""
    query = select(links).where(links.c.place == place(fqrn, path)).order_by(links.c.id.desc()).limit(limit)
    with reading(bind) as connection:
        return tuple(LinkRecord.from_json(row) for row in connection.execute(query).mappings())


def led_to(bind: Bind, fqrn: str, path: str) -> BuildKey | None:
    """The build that a link led to last, as far as this ledger set it; None if it never did, or took it away."""
    where = (links.c.place == place(fqrn, path), links.c.state.in_(_SET))
    query = select(links.c.build_id, links.c.build_date, links.c.state).where(*where).order_by(links.c.id.desc())
    with reading(bind) as connection:
        row = connection.execute(query.limit(1)).first()
    if row is None or row.state == LinkState.REMOVED.value:
        return None
    return BuildKey(row.build_date, row.build_id)


def _same(before: LinkRecord, link: LinkRecord) -> bool:
    about = ("kind", "slot", "build_id", "state", "reason", "run_id")
    return all(getattr(before, name) == getattr(link, name) for name in about)
