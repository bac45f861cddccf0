"""What each garbage collection deleted, and what it left."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "collections",
        sa.Column("repository", exact(128), primary_key=True),
        sa.Column("ended_at", UtcTime, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("kept", sa.BigInteger, nullable=False),
        sa.Column("deleted", sa.BigInteger, nullable=False),
        sa.Column("bytes_deleted", sa.BigInteger, nullable=False),
        sa.Column("garbage", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        # a migration that was killed half way begins again
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
