"""The tables of the health of sites."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import NAMING, ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text

revision = "v0003"
down_revision = "v0002"
branch_labels = None
depends_on = None

_metadata = sa.MetaData(naming_convention=NAMING)
site_states = sa.Table(
    "site_states", _metadata,
    sa.Column("site", exact(128), primary_key=True),
    sa.Column("state", exact(16), nullable=False),
    sa.Column("since", UtcTime, nullable=False),
    sa.Column("reason", long_text(), nullable=False),
    sa.Column("checked_at", UtcTime),
    sa.Column("good", sa.Integer, nullable=False),
    sa.Column("calm", sa.Integer, nullable=False),
    sa.Column("bad", sa.Integer, nullable=False),
    sa.Column("held_by", exact(128)),
    sa.Column("held_reason", long_text()),
    sa.Column("held_at", UtcTime),
    **TABLE_OPTIONS,
)  # fmt: skip
site_changes = sa.Table(
    "site_changes", _metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("site", exact(128), nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("change", exact(16), nullable=False),
    sa.Column("worse", sa.Boolean, nullable=False),
    sa.Column("reason", long_text(), nullable=False),
    sa.Index(None, "site", "at"),
    sqlite_autoincrement=True, **TABLE_OPTIONS,
)  # fmt: skip
site_results = sa.Table(
    "site_results", _metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("site", exact(128), nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("source", exact(16), nullable=False),
    sa.Column("what", exact(32), nullable=False),
    sa.Column("kind", exact(32), nullable=False),
    sa.Column("good", sa.Integer, nullable=False),
    sa.Column("failed", sa.Integer, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("retries", sa.BigInteger, nullable=False),
    sa.Index(None, "at"),
    sa.Index(None, "site", "at"),
    sqlite_autoincrement=True, **TABLE_OPTIONS,
)  # fmt: skip

site_rounds = sa.Table(
    "site_rounds", _metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=False),
    sa.Column("ended_at", UtcTime, nullable=False),
    sa.Column("counted", ROW_ID, nullable=False),
    sa.Column("own_network_since", UtcTime),
    sa.Column("own_network_rounds", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)  # fmt: skip


def upgrade() -> None:
    connection = op.get_bind()
    for table in _metadata.sorted_tables:
        table.create(connection, checkfirst=True)
        for index in table.indexes:
            index.create(connection, checkfirst=True)
