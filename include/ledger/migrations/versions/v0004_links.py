"""Links, tags and what was undone; what an index states about itself; what a partial build takes from another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _add("builds", sa.Column("serial", sa.BigInteger))
    _add("builds", sa.Column("written_at", UtcTime))
    _add("builds", sa.Column("base_build", exact(128)))
    _add("builds", sa.Column("base_date", sa.Date))
    _add("artifacts", sa.Column("inherited", exact(128)))
    op.create_table(
        "links",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("place", hexadecimal(64), nullable=False),
        sa.Column("kind", exact(16), nullable=False),
        sa.Column("repository", exact(128), nullable=False),
        sa.Column("path", exact(1024), nullable=False),
        sa.Column("slot", exact(128), nullable=False),
        sa.Column("build_id", exact(128), nullable=False),
        sa.Column("build_date", sa.Date, nullable=False),
        sa.Column("state", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("run_id", exact(512), nullable=False),
        sa.Column("revision", sa.BigInteger),
        sa.Column("decided_at", UtcTime, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    _index("ix_links_place", "links", "place")
    op.create_table(
        "undone",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("artifact", _ROW_ID, sa.ForeignKey("artifacts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("artifact_sha256", hexadecimal(64), nullable=False),
        sa.Column("repository", exact(128), nullable=False),
        sa.Column("destination", exact(1024), nullable=False),
        sa.Column("nested_hash", hexadecimal(64), nullable=False),
        sa.Column("predecessor", exact(128)),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("run_id", exact(512), nullable=False),
        sa.Column("revision", sa.BigInteger),
        sa.Column("undone_at", UtcTime, nullable=False),
        sa.Column("lifted_at", UtcTime),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    _index("ix_undone_artifact", "undone", "artifact")


def _add(table: str, column: sa.Column[object]) -> None:
    # a migration that was killed half way is started again
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _index(name: str, table: str, column: str) -> None:
    # MySQL also makes one for a foreign key, under another name
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, [column])
