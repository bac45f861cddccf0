"""Interventions, alerts, summaries, and who published what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NAME = exact(128)


def upgrade() -> None:
    _table(
        "interventions",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("repository", _NAME, nullable=False),
        sa.Column("kind", exact(16), nullable=False),
        sa.Column("freeze", exact(64), nullable=False),
        sa.Column("who", exact(256), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("until", UtcTime),
        sa.Column("done_at", UtcTime, nullable=False),
    )
    _index("ix_interventions_repository", "interventions", "repository")
    _table(
        "alerts",
        sa.Column("cause", hexadecimal(64), primary_key=True),
        sa.Column("key", exact(512), nullable=False),
        sa.Column("event", exact(32), nullable=False),
        sa.Column("severity", exact(16), nullable=False),
        sa.Column("title", long_text(), nullable=False),
        sa.Column("text", long_text(), nullable=False),
        sa.Column("times", sa.Integer, nullable=False),
        sa.Column("first_seen_at", UtcTime, nullable=False),
        sa.Column("last_seen_at", UtcTime, nullable=False),
        sa.Column("told_at", UtcTime),
        sa.Column("fault", long_text()),
    )
    _table(
        "summaries",
        sa.Column("slot", _NAME, primary_key=True),
        sa.Column("build_date", sa.Date, primary_key=True),
        sa.Column("file", exact(1024), nullable=False),
        sa.Column("headline", long_text(), nullable=False),
        sa.Column("made_at", UtcTime, nullable=False),
        sa.Column("told_at", UtcTime),
        sa.Column("fault", long_text()),
    )
    _table(
        "provenance",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("place", hexadecimal(64), nullable=False),
        sa.Column("repository", _NAME, nullable=False),
        sa.Column("path", exact(1024), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("root_hash", hexadecimal(64)),
        sa.Column("nested_hash", hexadecimal(64)),
        sa.Column("changeset", hexadecimal(64)),
        sa.Column("source", exact(2048)),
        sa.Column("artifact_sha256", hexadecimal(64)),
        sa.Column("slot", _NAME),
        sa.Column("build_id", _NAME),
        sa.Column("project", _NAME),
        sa.Column("platform", _NAME),
        sa.Column("run_id", exact(512), nullable=False),
        sa.Column("holder", exact(512), nullable=False),
        sa.Column("publisher", exact(32), nullable=False),
        sa.Column("key_id", _NAME, nullable=False),
        sa.Column("published_at", UtcTime, nullable=False),
        sa.Column("document", exact(512)),
    )
    _index("ix_provenance_place", "provenance", "place")


def _table(name: str, *columns: sa.Column[object]) -> None:
    # a migration that was killed half way is started again
    op.create_table(name, *columns, if_not_exists=True, **TABLE_OPTIONS)


def _index(name: str, table: str, column: str) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, [column])
