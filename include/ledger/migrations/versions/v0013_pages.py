"""What pages need: the try that moved a publication last, progress of preparations, indexes of what they list."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    # a migration that was killed half way begins again
    if "holder" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("publications")}:
        op.add_column("publications", sa.Column("holder", exact(512)))
    _index("links", "slot", "build_date")
    _index("provenance", "repository", "revision")
    op.create_table(
        "progress",
        sa.Column("publication", ROW_ID, primary_key=True, autoincrement=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("began_at", UtcTime, nullable=False),
        sa.Column("files", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("bytes_uploaded", sa.BigInteger, nullable=False),
        sa.Column("noted_at", UtcTime, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )


def _index(table: str, *columns: str) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))
