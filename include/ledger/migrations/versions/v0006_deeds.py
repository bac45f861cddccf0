"""Who set links and took trees away; where trees came from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import exact, long_text

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _add("provenance", sa.Column("kind", exact(16)))
    _add("provenance", sa.Column("came_from", exact(1024)))
    _add("provenance", sa.Column("from_build", exact(128)))
    _add("provenance", sa.Column("leads_to", long_text()))
    _add("provenance", sa.Column("before", long_text()))
    _add("provenance", sa.Column("reason", long_text()))


def _add(table: str, column: sa.Column[object]) -> None:
    # a migration that was killed half way is started again
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
