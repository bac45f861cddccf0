"""What the suites of the quality gate found in each run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quality",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("run_id", exact(512), nullable=False),
        sa.Column("suite", exact(16), nullable=False),
        sa.Column("slot", exact(128), nullable=False),
        sa.Column("build_id", exact(128), nullable=False),
        sa.Column("verdict", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("accepted", long_text(), nullable=False),
        sa.Column("faults", sa.Integer, nullable=False),
        sa.Column("checked_at", UtcTime, nullable=False),
        sa.UniqueConstraint("run_id", "suite"),
        # a migration that was killed half way begins again
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    if "ix_quality_slot_build_id" not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("quality")}:
        op.create_index("ix_quality_slot_build_id", "quality", ["slot", "build_id"])
