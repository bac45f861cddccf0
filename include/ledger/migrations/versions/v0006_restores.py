"""Restores of the ledger name their backup, and are accepted by a person. Those that are noted already are accepted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import UtcTime, exact

revision = "v0006"
down_revision = "v0005"
branch_labels = None
depends_on = None

TABLE = "stageout_restores"
COLUMNS = (
    sa.Column("backup", exact(128)), sa.Column("accepted_at", UtcTime), sa.Column("accepted_by", exact(128)),
)  # fmt: skip


def upgrade() -> None:
    connection = op.get_bind()
    present = {column["name"] for column in sa.inspect(connection).get_columns(TABLE)}
    for column in COLUMNS:
        if column.name not in present:
            op.add_column(TABLE, column.copy())
    if "accepted_by" not in present:
        connection.execute(sa.text(f"UPDATE {TABLE} SET accepted_at = noted_at, accepted_by = noted_by"))  # noqa: S608
