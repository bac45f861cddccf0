"""Transfers between sites: requests, queues, FTS jobs, transfers, their moves, and the archive."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NAME = exact(128)


def upgrade() -> None:
    _table(
        "stageout_requests",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("workflow", NAME, nullable=False),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
        sa.UniqueConstraint("owner", "key"),
    )
    _table(
        "stageout_queues",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("source", NAME, nullable=False),
        sa.Column("destination", NAME, nullable=False),
        sa.Column("activity", NAME, nullable=False),
        sa.Column("kind", exact(16), nullable=False),
        sa.UniqueConstraint("digest"),
    )
    _table(
        "stageout_jobs",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("sid", hexadecimal(32), nullable=False),
        sa.Column("fts_id", hexadecimal(36), nullable=False),
        sa.Column("server", NAME, nullable=False),
        sa.Column("queue", ROW_ID, sa.ForeignKey("stageout_queues.id"), nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        *_state(),
        sa.UniqueConstraint("fts_id"),
    )
    _table(
        "stageout_transfers",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("request", ROW_ID, sa.ForeignKey("stageout_requests.id"), nullable=False),
        sa.Column("queue", ROW_ID, sa.ForeignKey("stageout_queues.id"), nullable=False),
        sa.Column("place", hexadecimal(64), nullable=False),
        *_file(),
        sa.Column("retries", sa.Integer, nullable=False),
        sa.Column("job", ROW_ID, sa.ForeignKey("stageout_jobs.id")),
        *_state(),
        sa.UniqueConstraint("place"),
    )
    _table(
        "stageout_moves",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("transfer", ROW_ID),
        sa.Column("job", ROW_ID),
        sa.Column("state_before", exact(16), nullable=False),
        sa.Column("state", exact(16), nullable=False),
        sa.Column("component", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("moved_at", UtcTime, nullable=False),
    )
    _table(
        "stageout_archive",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=False),
        sa.Column("request", ROW_ID, nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("workflow", NAME, nullable=False),
        sa.Column("source", NAME, nullable=False),
        sa.Column("destination", NAME, nullable=False),
        *_file(),
        sa.Column("fts_id", hexadecimal(36)),
        sa.Column("state", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("retries", sa.Integer, nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
        sa.Column("moved_at", UtcTime, nullable=False),
        sa.Column("history", long_text(), nullable=False),
    )
    for table, *columns in (
        ("stageout_jobs", "state", "due_at"),
        ("stageout_transfers", "state", "due_at"),
        ("stageout_transfers", "state", "queue", "due_at"),
        ("stageout_transfers", "job"),
        ("stageout_transfers", "request"),
        ("stageout_moves", "transfer"),
        ("stageout_moves", "job"),
        ("stageout_archive", "request"),
        ("stageout_archive", "moved_at"),
    ):
        _index(table, *columns)


def _file() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("source_name", exact(1024), nullable=False),
        sa.Column("destination_name", exact(1024), nullable=False),
        sa.Column("size", sa.BigInteger),
        sa.Column("checksum", hexadecimal(32)),
        sa.Column("dataset", exact(512)),
        sa.Column("user_job", NAME),
    )


def _state() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("state", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("due_at", UtcTime, nullable=False),
        sa.Column("claim", hexadecimal(32)),
        sa.Column("claimed_by", NAME),
        sa.Column("created_at", UtcTime, nullable=False),
        sa.Column("moved_at", UtcTime, nullable=False),
    )


def _table(name: str, *columns: sa.Column[object] | sa.UniqueConstraint) -> None:
    # a migration that was killed half way begins again
    # the archive has ids of rows that are deleted: SQLite would use them again
    op.create_table(name, *columns, if_not_exists=True, sqlite_autoincrement=True, **TABLE_OPTIONS)


def _index(table: str, *columns: str) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)
