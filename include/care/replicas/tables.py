"""The ledger's table of replicas. A change here needs a migration in `include/ledger/migrations/versions`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Table

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text, metadata

replicas = Table(
    "replicas",
    metadata,
    # the last look at each, and since when it is in its state
    Column("repository", exact(128), primary_key=True),
    Column("replica", exact(128), primary_key=True),
    Column("url", exact(2048), nullable=False),
    Column("state", exact(32), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("looked_at", UtcTime, nullable=False),
    Column("state_since", UtcTime, nullable=False),
    Column("head_revision", BigInteger, nullable=False),
    Column("revision", BigInteger),
    Column("highest_revision", BigInteger),
    Column("behind_since", UtcTime),
    Column("snapshot_since", UtcTime),
    Column("last_snapshot", UtcTime),
    **TABLE_OPTIONS,
)
