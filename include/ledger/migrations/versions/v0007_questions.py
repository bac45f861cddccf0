"""What a person was asked to approve, and what the answer binds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    # a migration that was killed half way is started again
    if "approve_try" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("publications")}:
        op.add_column("publications", sa.Column("approve_try", sa.Integer, nullable=False, server_default="0"))
    op.create_table(
        "questions",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("run_id", exact(512), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("kind", exact(16), nullable=False),
        sa.Column("repository", exact(128), nullable=False),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("subject", long_text(), nullable=False),
        sa.Column("body", long_text(), nullable=False),
        sa.Column("asked_at", UtcTime, nullable=False),
        sa.Column("expires_at", UtcTime, nullable=False),
        sa.Column("deadline", UtcTime, nullable=False),
        sa.Column("answer", exact(16), nullable=False),
        sa.Column("answered_at", UtcTime),
        sa.Column("answered_by", exact(256)),
        sa.Column("comment", long_text(), nullable=False),
        sa.UniqueConstraint("run_id", "number"),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    op.create_table(
        "bound",
        sa.Column("question", _ROW_ID, sa.ForeignKey("questions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("digest", hexadecimal(64), primary_key=True),
        sa.Column("name", exact(1024), nullable=False),
        sa.Column("destination", exact(1024), nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    if "ix_bound_digest" not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("bound")}:
        op.create_index("ix_bound_digest", "bound", ["digest"])
