"""The name of who asked to keep the source of a transfer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import exact

revision = "v0005"
down_revision = "v0004"
branch_labels = None
depends_on = None

TABLE, NEW = "stageout_transfers", "kept_by"


def upgrade() -> None:
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(TABLE)}
    if NEW not in present:
        op.add_column(TABLE, sa.Column(NEW, exact(128)))
