"""Stage-out: what its components record beside moves; blocks, the catalogue, analytics and findings."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NAME = exact(128)


def upgrade() -> None:
    _add("stageout_jobs", sa.Column("overwrites", sa.Boolean, nullable=False, server_default=sa.false()))
    _add("stageout_transfers", sa.Column("may_overwrite", sa.Boolean, nullable=False, server_default=sa.false()))
    _add("stageout_transfers", sa.Column("failure", exact(32)))
    _add("stageout_transfers", sa.Column("copied_at", UtcTime))
    _add("stageout_transfers", sa.Column("block", ROW_ID))
    _add("stageout_archive", sa.Column("failure", exact(32)))
    _add("stageout_archive", sa.Column("copied_at", UtcTime))
    _table(
        "stageout_blocks",
        _id(),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("workflow", NAME, nullable=False),
        sa.Column("dataset", exact(512), nullable=False),
        sa.Column("name", exact(640), nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("state", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("due_at", UtcTime, nullable=False),
        sa.Column("claim", hexadecimal(32)),
        sa.Column("claimed_by", NAME),
        sa.Column("created_at", UtcTime, nullable=False),
        sa.Column("moved_at", UtcTime, nullable=False),
    )
    _table(
        "stageout_workflows",
        _id(),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("closed_at", UtcTime),
        sa.Column("killed_at", UtcTime),
        sa.UniqueConstraint("digest"),
    )
    _table(
        "stageout_catalogue",
        _id(),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("dataset", exact(512), nullable=False),
        sa.Column("name", exact(1024), nullable=False),
        sa.Column("site", NAME, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("checksum", hexadecimal(32)),
        sa.Column("block", exact(640), nullable=False),
        sa.Column("registered_at", UtcTime, nullable=False),
        sa.UniqueConstraint("digest"),
    )
    _table(
        "stageout_analytics",
        _id(),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("day", UtcTime, nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("workflow", NAME, nullable=False),
        sa.Column("source", NAME, nullable=False),
        sa.Column("destination", NAME, nullable=False),
        sa.Column("state", exact(16), nullable=False),
        sa.Column("failure", exact(32)),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("retries", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("waited_s", "copied_s", "verified_s", "ended_s")),
        sa.UniqueConstraint("digest"),
    )
    _table(
        "stageout_findings",
        _id(),
        sa.Column("found_at", UtcTime, nullable=False),
        sa.Column("kind", exact(32), nullable=False),
        sa.Column("site", NAME),
        sa.Column("transfer", ROW_ID),
        sa.Column("job", ROW_ID),
        sa.Column("name", exact(1024)),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("outcome", exact(16), nullable=False),
    )
    for table, *columns in (
        ("stageout_requests", "workflow", "owner"),
        ("stageout_requests", "created_at"),
        ("stageout_queues", "owner"),
        ("stageout_archive", "owner"),
        ("stageout_archive", "workflow"),
        ("stageout_transfers", "block"),
        ("stageout_blocks", "state", "due_at"),
        ("stageout_blocks", "digest", "state"),
        ("stageout_blocks", "owner", "workflow"),
        ("stageout_workflows", "closed_at"),
        ("stageout_catalogue", "dataset"),
        ("stageout_catalogue", "block"),
        ("stageout_analytics", "day"),
        ("stageout_analytics", "owner", "workflow"),
        ("stageout_findings", "found_at"),
    ):
        _index(table, *columns)
    for table in ("stageout_transfers", "stageout_archive"):
        # the beginning: a logical name is longer than an index may be
        _index(table, "source_name", mysql_length=255)


def _id() -> sa.Column[Any]:
    return sa.Column("id", ROW_ID, primary_key=True, autoincrement=True)


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _table(name: str, *columns: sa.Column[Any] | sa.UniqueConstraint) -> None:
    # a migration that was killed half way begins again
    op.create_table(name, *columns, if_not_exists=True, sqlite_autoincrement=True, **TABLE_OPTIONS)


def _index(table: str, *columns: str, mysql_length: int | None = None) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns, mysql_length=mysql_length)
