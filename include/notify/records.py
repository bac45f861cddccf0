"""Causes in the ledger: when one was seen, and whether people were notified of it lately."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Connection, Integer, RowMapping, Table, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata
from include.notify.message import Message, NotifyEvent, cause_of

alerts = Table(
    "alerts",
    metadata,
    # one row a cause; `times` counts how often it was seen, with or without a notification
    Column("cause", hexadecimal(64), primary_key=True),
    Column("key", exact(512), nullable=False),
    Column("event", exact(32), nullable=False),
    Column("severity", exact(16), nullable=False),
    Column("title", long_text(), nullable=False),
    Column("text", long_text(), nullable=False),
    Column("times", Integer, nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime, nullable=False),
    Column("told_at", UtcTime),
    Column("fault", long_text()),
    **TABLE_OPTIONS,
)
AT_ONCE = 500
"""Keys of one query."""
SEEN = "seen"
"""The event of what is only watched."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A cause. `told_at`: when people were last notified; `fault`: why that did not work."""

    key: str
    event: str
    severity: str
    title: str
    text: str
    times: int
    first_seen_at: datetime
    last_seen_at: datetime
    told_at: datetime | None
    fault: str | None

    @classmethod
    def from_row(cls, row: RowMapping) -> Alert:
        return cls(**{name: row[name] for name in cls.__slots__})


def claim(bind: Bind, message: Message, *, now: datetime, window: timedelta) -> bool:
    """Note that a cause was seen; whether the caller is to notify people: they were not notified within the window.

    If several processes see it at once, exactly one of them is to notify people.
    """
    cause = cause_of(message.key)

    def work(connection: Connection) -> bool:
        values = {
            "event": message.event.value,
            "severity": message.severity,
            "title": message.title,
            "text": message.plain(),
            "last_seen_at": now,
        }
        where = alerts.c.cause == cause
        if connection.scalar(select(alerts.c.cause).where(where)) is None:
            try:
                with connection.begin_nested():
                    connection.execute(
                        insert(alerts).values(cause=cause, key=message.key[:512], times=0, first_seen_at=now, **values)
                    )
            except IntegrityError:
                pass  # another process saw it in this moment
        connection.execute(update(alerts).where(where).values(times=alerts.c.times + 1, **values))
        stale = or_(alerts.c.told_at.is_(None), alerts.c.told_at <= now - window)
        return bool(connection.execute(update(alerts).where(where, stale).values(told_at=now, fault=None)).rowcount)

    return writing(bind, work)


def not_told(bind: Bind, message: Message, fault: str | None) -> None:
    """Give a claim back: no one was notified, so that the next process that sees the cause tries again.

    Args:
        fault: Why each way failed; None: no way is configured.
    """

    def work(connection: Connection) -> None:
        where = alerts.c.cause == cause_of(message.key)
        connection.execute(update(alerts).where(where).values(told_at=None, fault=fault))

    writing(bind, work)


def alerts_since(bind: Bind, since: datetime) -> Sequence[Alert]:
    """The causes that were seen since then, the newest first."""
    query = select(alerts).where(alerts.c.last_seen_at >= since, alerts.c.event != SEEN)
    query = query.order_by(alerts.c.last_seen_at.desc(), alerts.c.cause)
    with reading(bind) as connection:
        return [Alert.from_row(row) for row in connection.execute(query).mappings()]


def undelivered(bind: Bind, since: datetime, event: NotifyEvent) -> Sequence[Alert]:
    """The causes of an event, seen since then, of which no message was sent."""
    query = select(alerts).where(alerts.c.event == event.value, alerts.c.last_seen_at >= since)
    query = query.where(alerts.c.told_at.is_(None))
    with reading(bind) as connection:
        return [Alert.from_row(row) for row in connection.execute(query).mappings()]


def append_note(bind: Bind, key: str, note: Mapping[str, Any], *, now: datetime, limit: int) -> None:
    """Keep a note below a key until it is taken, at most `limit` of them; people are not notified of it."""
    cause = cause_of(key)

    def work(connection: Connection) -> None:
        where = alerts.c.cause == cause
        known = connection.scalar(select(alerts.c.text).where(where).with_for_update())
        notes = json.loads(known) if known else []
        if len(notes) >= limit:
            return
        values = {"text": json.dumps([*notes, dict(note)]), "times": len(notes) + 1, "last_seen_at": now}
        if known is not None:
            connection.execute(update(alerts).where(where).values(**values))
            return
        what = {"event": SEEN, "severity": SEEN, "title": key, "first_seen_at": now}
        connection.execute(insert(alerts).values(cause=cause, key=key[:512], **what, **values))

    try:
        writing(bind, work)
    except IntegrityError:
        writing(bind, work)  # another process wrote the first one in this moment


def take_notes(bind: Bind, key: str) -> list[dict[str, Any]]:
    """The notes of a key, in the order in which they came; they are forgotten."""
    where = alerts.c.cause == cause_of(key)

    def work(connection: Connection) -> list[dict[str, Any]]:
        known = connection.scalar(select(alerts.c.text).where(where).with_for_update())
        connection.execute(delete(alerts).where(where))
        return json.loads(known) if known else []

    return writing(bind, work)


def seen_of(bind: Bind, keys: Iterable[str], since: datetime) -> frozenset[str]:
    """Return which of these were seen since then."""
    of_cause = {cause_of(key): key for key in keys}
    causes, found = list(of_cause), set[str]()
    with reading(bind) as connection:
        for start in range(0, len(causes), AT_ONCE):
            query = select(alerts.c.cause).where(
                alerts.c.cause.in_(causes[start : start + AT_ONCE]), alerts.c.last_seen_at >= since
            )
            found.update(connection.scalars(query))
    return frozenset(of_cause[cause] for cause in found)


def first_seen(bind: Bind, keys: Iterable[str]) -> Sequence[datetime]:
    """When those of these that are known were seen first."""
    causes = [cause_of(key) for key in keys]
    with reading(bind) as connection:
        return [
            at
            for start in range(0, len(causes), AT_ONCE)
            for at in connection.scalars(
                select(alerts.c.first_seen_at).where(alerts.c.cause.in_(causes[start : start + AT_ONCE]))
            )
        ]


def seen_since(bind: Bind, key: str, now: datetime, gap: timedelta) -> datetime:
    """Since when something has been seen again and again, without a gap as long as this; people are not notified."""
    cause = cause_of(key)

    def work(connection: Connection) -> datetime:
        where = alerts.c.cause == cause
        row = connection.execute(select(alerts).where(where).with_for_update()).mappings().first()
        if row is None:
            values = {"event": SEEN, "severity": SEEN, "title": key, "text": "", "first_seen_at": now}
            connection.execute(insert(alerts).values(cause=cause, key=key[:512], times=1, last_seen_at=now, **values))
            return now
        first: datetime = row["first_seen_at"] if now - row["last_seen_at"] < gap else now
        connection.execute(
            update(alerts).where(where).values(first_seen_at=first, last_seen_at=now, times=alerts.c.times + 1)
        )
        return first

    return writing(bind, work)
