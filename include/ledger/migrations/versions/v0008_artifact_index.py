"""Publications are found by their artifact: for what an earlier night published of the same project."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB has made an index for the foreign key: under a name of its own, or under this one
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("publications")}
    if "ix_publications_artifact" not in there:
        op.create_index("ix_publications_artifact", "publications", ["artifact"])
