"""The ledger's table of summaries that were sent. A change needs a migration in `include/ledger/migrations`."""

from __future__ import annotations

from sqlalchemy import Column, Date, Table

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text, metadata

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
