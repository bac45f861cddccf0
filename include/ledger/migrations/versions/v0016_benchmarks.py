"""Storage benchmarks: judged campaigns, and the baselines that people accepted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NAME = exact(128)


def upgrade() -> None:
    # a migration that was killed half way begins again
    op.create_table(
        "benchmark_campaigns",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("campaign", exact(200), nullable=False),
        sa.Column("target", NAME, nullable=False),
        sa.Column("preset", NAME, nullable=False),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("began_at", UtcTime, nullable=False),
        sa.Column("verdict", exact(16), nullable=False),
        sa.Column("document", long_text(), nullable=False),
        sa.UniqueConstraint("campaign"),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    op.create_table(
        "benchmark_baselines",
        sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("target", NAME, nullable=False),
        sa.Column("digest", hexadecimal(64), nullable=False),
        sa.Column("campaign", exact(200), nullable=False),
        sa.Column("accepted_by", NAME, nullable=False),
        sa.Column("accepted_at", UtcTime, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    _index("benchmark_campaigns", "target", "preset", "began_at")
    _index("benchmark_baselines", "target", "digest")


def _index(table: str, *columns: str) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))
