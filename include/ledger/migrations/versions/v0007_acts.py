"""A table of destructive acts: who did what, when and why; indexes by time of the other tables of the audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import NAMING, ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text

revision = "v0007"
down_revision = "v0006"
branch_labels = None
depends_on = None

_metadata = sa.MetaData(naming_convention=NAMING)
acts = sa.Table(
    "acts", _metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("kind", exact(32), nullable=False),
    sa.Column("what", long_text(), nullable=False),
    sa.Column("who", exact(512), nullable=False),
    sa.Column("why", long_text(), nullable=False),
    sa.Column("run", exact(512)),
    sa.Column("dry_run", sa.Boolean, nullable=False),
    sa.Index(None, "at"),
    sa.Index(None, "kind", "at"),
    sa.Index(None, "who", "at"),
    sqlite_autoincrement=True, **TABLE_OPTIONS,
)  # fmt: skip

TIMES = {"questions": "answered_at", "quality": "checked_at", "interventions": "done_at"}


def upgrade() -> None:
    connection = op.get_bind()
    acts.create(connection, checkfirst=True)
    for index in acts.indexes:
        index.create(connection, checkfirst=True)
    for table, column in TIMES.items():
        name = f"ix_{table}_{column}"
        if name not in {index["name"] for index in sa.inspect(connection).get_indexes(table)}:
            op.create_index(name, table, [column])
