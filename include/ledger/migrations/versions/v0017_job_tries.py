"""Submissions of an FTS job that had no clear reply."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # a migration that was killed half way begins again
    if "tries" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("stageout_jobs")}:
        op.add_column("stageout_jobs", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))
