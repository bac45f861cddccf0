"""An index from which transfers of a request are counted by state and queue, in the place of one by request alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"
branch_labels = None
depends_on = None

TABLE, OLD, NEW = "stageout_transfers", "ix_stageout_transfers_request", "ix_stageout_transfers_request_state_queue"


def upgrade() -> None:
    present = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(TABLE)}
    if NEW not in present:  # before the old one goes: MariaDB needs one of them for the foreign key
        op.create_index(NEW, TABLE, ["request", "state", "queue"])
    if OLD in present:
        op.drop_index(OLD, TABLE)
