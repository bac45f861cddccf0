"""The ledger's table of notifications. A change needs a migration in `include/ledger/migrations/versions`."""

from __future__ import annotations

from sqlalchemy import Column, Integer, Table

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata

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
