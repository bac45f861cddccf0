"""Objects that a repository needs and its store has not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "damaged",
        sa.Column("repository", exact(128), primary_key=True),
        sa.Column("object", hexadecimal(64), primary_key=True),
        sa.Column("path", exact(1024), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("stored_size", sa.BigInteger),
        sa.Column("found_at", UtcTime, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
