"""Builds, artifacts, changesets, publications; what stores keep.

MySQL commits after every statement: a migration that was killed half-way is run again over what it left, so each
statement first looks whether it is done.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NAME = exact(128)
HASH = hexadecimal(64)


def upgrade() -> None:
    _table(
        "builds",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("slot", NAME, nullable=False),
        sa.Column("build_id", NAME, nullable=False),
        sa.Column("build_date", sa.Date, nullable=False),
        sa.Column("complete", sa.Boolean, nullable=False),
        sa.Column("index_url", exact(2048), nullable=False),
        sa.Column("artifacts", sa.Integer, nullable=False),
        sa.Column("rejected", sa.JSON, nullable=False),
        sa.Column("first_seen_at", UtcTime, nullable=False),
        sa.Column("updated_at", UtcTime, nullable=False),
        sa.UniqueConstraint("slot", "build_id", name="uq_builds_slot_build_id"),
    )
    _index("ix_builds_slot_build_date", "builds", "slot", "build_date")
    _table(
        "artifacts",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("build", ROW_ID, nullable=False),
        sa.Column("project", NAME, nullable=False),
        sa.Column("platform", NAME, nullable=False),
        sa.Column("url", exact(2048), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", HASH, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("dependencies", sa.JSON, nullable=False),
        sa.Column("first_seen_at", UtcTime, nullable=False),
        sa.Column("updated_at", UtcTime, nullable=False),
        sa.ForeignKeyConstraint(["build"], ["builds.id"], name="fk_artifacts_build_builds", ondelete="CASCADE"),
        sa.UniqueConstraint("build", "project", "platform", name="uq_artifacts_build_project_platform"),
    )
    _table(
        "changesets",
        sa.Column("digest", HASH, primary_key=True),
        sa.Column("place", HASH, nullable=False),
        sa.Column("repository", NAME, nullable=False),
        sa.Column("destination", exact(1024), nullable=False),
        sa.Column("source_sha256", HASH, nullable=False),
        sa.Column("root_hash", HASH, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("base_revision", sa.BigInteger),
        sa.Column("body", long_text(), nullable=False),
        sa.Column("created_at", UtcTime, nullable=False),
    )
    _index("ix_changesets_place_source_sha256", "changesets", "place", "source_sha256")
    _table(
        "publications",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("run_id", exact(512), nullable=False),
        sa.Column("place", HASH, nullable=False),
        sa.Column("repository", NAME, nullable=False),
        sa.Column("destination", exact(1024), nullable=False),
        sa.Column("artifact", ROW_ID),
        sa.Column("artifact_sha256", HASH),
        sa.Column("changeset", HASH),
        sa.Column("state", exact(16), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("error_class", exact(128)),
        sa.Column("phase", exact(16), nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("plan_try", sa.Integer, nullable=False),
        sa.Column("prepare_try", sa.Integer, nullable=False),
        sa.Column("publish_try", sa.Integer, nullable=False),
        sa.Column("revision_before", sa.BigInteger),
        sa.Column("revision_after", sa.BigInteger),
        sa.Column("root_hash", HASH),
        sa.Column("nested_hash", HASH),
        sa.Column("files", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("objects_new", sa.BigInteger),
        sa.Column("objects_reused", sa.BigInteger),
        sa.Column("bytes_uploaded", sa.BigInteger),
        sa.Column("seconds", sa.JSON, nullable=False),
        sa.Column("lease_held_s", sa.Float),
        sa.Column("created_at", UtcTime, nullable=False),
        sa.Column("updated_at", UtcTime, nullable=False),
        sa.Column("ended_at", UtcTime),
        sa.Column("verified_at", UtcTime),
        sa.ForeignKeyConstraint(
            ["artifact"], ["artifacts.id"], name="fk_publications_artifact_artifacts", ondelete="SET NULL"
        ),
        sa.UniqueConstraint("run_id", "place", name="uq_publications_run_id_place"),
    )
    _index("ix_publications_place_artifact_sha256", "publications", "place", "artifact_sha256")
    _index("ix_publications_repository_state", "publications", "repository", "state")
    _table(
        "installed",
        sa.Column("place", HASH, primary_key=True),
        sa.Column("artifact_sha256", HASH, primary_key=True),
        sa.Column("nested_hash", HASH, nullable=False),
        sa.Column("updated_at", UtcTime, nullable=False),
    )
    _table(
        "store_traits",
        sa.Column("store", HASH, primary_key=True),
        sa.Column("name", NAME, nullable=False),
        sa.Column("url", exact(2048), nullable=False),
        sa.Column("put_if_absent", sa.Boolean, nullable=False),
        sa.Column("replace_if_unchanged", sa.Boolean, nullable=False),
        sa.Column("bulk_delete", sa.Boolean, nullable=False),
        sa.Column("anonymous_read", sa.Boolean),
        sa.Column("etag_quotes", sa.Boolean, nullable=False),
        sa.Column("probed_at", UtcTime, nullable=False),
    )


def _table(name: str, *parts: Any) -> None:
    op.create_table(name, *parts, if_not_exists=True, **TABLE_OPTIONS)


def _index(name: str, table: str, *columns: str) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))
