"""Reads from the ledger what a summary is made of, keeps summaries in files, and notes which were sent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

from sqlalchemy import Column, Connection, Date, Table, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text, metadata
from include.monitoring.render import to_html, to_text
from include.monitoring.summary import Summary, no_log, summary
from include.nightlies.records import builds, quality, tables
from include.nightlies.records import links as linked
from include.nightlies.records import publications as records
from include.nightlies.records.tables import links
from include.nightlies.rules.build import BuildKey
from include.settings.model import Slot

summaries = Table(
    "summaries",
    metadata,
    # whether a night's summary was made, so that it is sent once
    Column("slot", exact(128), primary_key=True),
    Column("build_date", Date, primary_key=True),
    Column("file", exact(1024), nullable=False),
    Column("headline", long_text(), nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("told_at", UtcTime),
    Column("fault", long_text()),
    **TABLE_OPTIONS,
)


def read_summary(
    bind: Bind, slot: Slot, day: date, *, now: datetime, log_of: Callable[[str], str | None] = no_log
) -> Summary:
    """The summary of a slot's night as the ledger has it in this moment."""
    with reading(bind) as connection:
        found = builds.builds_of(connection, slot.name, day)
        oldest = min((build.key for build in found), default=BuildKey(day, ""))
        before = builds.preceding_build(connection, slot.name, oldest)
        blocked = quality.blocked_night(connection, slot.name, day, [build.build_id for build in found], slot.quality)
        published = {build.id: records.publications_of_build(connection, build.id) for build in found}
        query = select(links).where(links.c.slot == slot.name, links.c.build_date == day).order_by(links.c.id)
        names = linked.LinkRecord.__slots__
        decided = {
            (row["kind"], row["path"]): linked.LinkRecord(**{name: row[name] for name in names})
            for row in connection.execute(query).mappings()
        }
    return summary(
        slot, day, builds=found, publications=published, before=before, links=decided.values(), now=now,
        blocked=blocked, log_of=log_of,
    )  # fmt: skip


def begun_since(bind: Bind, slot: Slot, since: datetime) -> dict[date, datetime]:
    """The build dates of which a first build became known since then, and when."""
    first = func.min(tables.builds.c.first_seen_at)
    query = select(tables.builds.c.build_date, first.label("at")).where(tables.builds.c.slot == slot.name)
    query = query.group_by(tables.builds.c.build_date).having(first >= since)
    with reading(bind) as connection:
        return {row["build_date"]: row["at"] for row in connection.execute(query).mappings()}


def store_summary(folder: Path, night: Summary) -> Path:
    """Write it as HTML, text and JSON below `folder`, each whole or not at all; the path of the HTML."""
    place = folder / "summaries" / night.slot
    place.mkdir(parents=True, exist_ok=True)
    forms = {"json": json.dumps(night.to_json(), indent=1), "txt": to_text(night), "html": to_html(night)}
    for suffix, text in forms.items():
        path = place / f"{night.date}.{suffix}"
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    return place / f"{night.date}.html"


def is_made(bind: Bind, slot: str, day: date, *, sent: bool) -> bool:
    """Tell if a night's summary was made and, with `sent`, sent."""
    where = [summaries.c.slot == slot, summaries.c.build_date == day]
    if sent:
        where.append(summaries.c.told_at.is_not(None))
    with reading(bind) as connection:
        return connection.scalar(select(summaries.c.slot).where(*where)) is not None


def note_made(bind: Bind, night: Summary, file: Path, *, now: datetime, fault: str | None) -> None:
    """Record that a summary was made; with a `fault` it was not sent, and will be tried again."""
    key = {"slot": night.slot, "build_date": night.date}
    told = now if fault is None else None
    values = {"file": str(file), "headline": night.headline, "made_at": now, "told_at": told, "fault": fault}

    def work(connection: Connection) -> None:
        where = (summaries.c.slot == night.slot, summaries.c.build_date == night.date)
        if connection.execute(update(summaries).where(*where).values(**values)).rowcount:
            return
        try:
            with connection.begin_nested():
                connection.execute(insert(summaries).values(**key, **values))
        except IntegrityError:
            connection.execute(update(summaries).where(*where).values(**values))

    writing(bind, work)
