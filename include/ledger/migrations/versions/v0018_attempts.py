"""Attempts of stage-out whose copy may still write, and when the first attempt began to copy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import UtcTime

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # a migration that was killed half way begins again
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("stageout_transfers")}
    for name in ("may_write_until", "began_at"):
        if name not in columns:
            op.add_column("stageout_transfers", sa.Column(name, UtcTime))
