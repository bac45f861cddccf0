"""The table of what was done with shared caches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import NAMING, ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text

revision = "v0002"
down_revision = "v0001"
branch_labels = None
depends_on = None

cache_runs = sa.Table(
    "cache_runs", sa.MetaData(naming_convention=NAMING),
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("cache", exact(128), nullable=False),
    sa.Column("kind", exact(16), nullable=False),
    sa.Column("ended_at", UtcTime, nullable=False),
    sa.Column("dry_run", sa.Boolean, nullable=False),
    sa.Column("document", long_text(), nullable=False),
    sa.Index(None, "cache", "kind", "ended_at"),
    sqlite_autoincrement=True, **TABLE_OPTIONS,
)  # fmt: skip


def upgrade() -> None:
    connection = op.get_bind()
    cache_runs.create(connection, checkfirst=True)
    for index in cache_runs.indexes:
        index.create(connection, checkfirst=True)
