"""Restores of the ledger from backups: what it may lack since, and whether a person has accepted what that means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, Connection, Table, insert, select, update

from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, metadata

# its name is from when the census alone read it: releases that still run beside this one ask for it by that name
ledger_restores = Table(
    "stageout_restores",
    metadata,
    # the ledger was restored from a backup of the time `since`: what came until `noted_at` may be missing
    Column("since", UtcTime, primary_key=True),
    Column("noted_at", UtcTime, nullable=False),
    Column("noted_by", exact(128), nullable=False),
    # None: restored by other means, and noted by a person
    Column("backup", exact(128)),
    # None: no garbage is collected
    Column("accepted_at", UtcTime),
    Column("accepted_by", exact(128)),
    **TABLE_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class LedgerRestore:
    """A restore of the ledger.

    Attributes:
        since: What was recorded after it may be missing.
        noted_at: Time of the restore; what was recorded after it is there.
        noted_by: Person who restored it.
        backup: Name of the backup; None: restored by other means.
        accepted_at: When a person accepted the report; None: not yet.
        accepted_by: That person.
    """

    since: datetime
    noted_at: datetime
    noted_by: str
    backup: str | None = None
    accepted_at: datetime | None = None
    accepted_by: str | None = None


def note(bind: Bind, restore: LedgerRestore) -> None:
    """Record a restore. Again with the same `since`, it changes nothing."""

    def work(connection: Connection) -> None:
        columns = ledger_restores.c
        if connection.scalar(select(columns.since).where(columns.since == restore.since)) is None:
            values = {name: getattr(restore, name) for name in columns.keys()}  # noqa: SIM118 - no mapping
            connection.execute(insert(ledger_restores).values(values))

    writing(bind, work)


def restores_of(bind: Bind, *, pending: bool = False) -> Sequence[LedgerRestore]:
    """Return the restores of the ledger, the oldest first; `pending`: only those that no person has accepted."""
    query = select(ledger_restores).order_by(ledger_restores.c.since)
    if pending:
        query = query.where(ledger_restores.c.accepted_at.is_(None))
    with reading(bind) as connection:
        return [LedgerRestore(**row) for row in connection.execute(query).mappings()]


def accept(bind: Bind, *, by: str, now: datetime) -> int:
    """Record that a person has accepted what all restores mean. Returns how many were pending."""
    columns = ledger_restores.c

    def work(connection: Connection) -> int:
        pending = update(ledger_restores).where(columns.accepted_at.is_(None))
        return connection.execute(pending.values(accepted_at=now, accepted_by=by)).rowcount

    return writing(bind, work)
