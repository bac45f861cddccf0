"""The ledger's table of freezes. A change here needs a migration in `include/ledger/migrations/versions`."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text, metadata

interventions = Table(
    "interventions",
    metadata,
    # who froze and thawed what, when and why, in order; the current freeze is in the repository's store
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("repository", exact(128), nullable=False),
    Column("kind", exact(16), nullable=False),
    Column("freeze", exact(64), nullable=False),
    Column("who", exact(256), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("until", UtcTime),
    Column("done_at", UtcTime, nullable=False),
    Index(None, "repository"),
    **TABLE_OPTIONS,
)
