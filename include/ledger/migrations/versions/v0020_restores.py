"""Restores of the ledger from a backup."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # a migration that was killed half way begins again
    op.create_table(
        "stageout_restores",
        sa.Column("since", UtcTime, primary_key=True),
        sa.Column("noted_at", UtcTime, nullable=False),
        sa.Column("noted_by", exact(128), nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
