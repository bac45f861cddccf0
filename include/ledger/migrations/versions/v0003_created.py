"""Directories that runs created above their destinations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "created",
        sa.Column("run_id", exact(512), primary_key=True),
        sa.Column("place", hexadecimal(64), primary_key=True),
        sa.Column("repository", exact(128), nullable=False),
        sa.Column("path", exact(1024), nullable=False),
        sa.Column("noted_at", UtcTime, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
