"""What suites of the quality gate found in each row, and the date of the build that they judged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # a migration that was killed half way begins again
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("quality")}
    for column in (sa.Column("build_date", sa.Date), sa.Column("fault_rows", sa.JSON)):
        if column.name not in there:
            op.add_column("quality", column)
