"""How far the replicas of a repository are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "replicas",
        sa.Column("repository", exact(128), primary_key=True),
        sa.Column("replica", exact(128), primary_key=True),
        sa.Column("url", exact(2048), nullable=False),
        sa.Column("state", exact(32), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("looked_at", UtcTime, nullable=False),
        sa.Column("state_since", UtcTime, nullable=False),
        sa.Column("head_revision", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger),
        sa.Column("highest_revision", sa.BigInteger),
        sa.Column("behind_since", UtcTime),
        sa.Column("snapshot_since", UtcTime),
        sa.Column("last_snapshot", UtcTime),
        # a migration that was killed half way begins again
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
