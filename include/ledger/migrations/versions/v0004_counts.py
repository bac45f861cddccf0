"""An index from which transfers of a request are counted, in the place of one by request; times until registration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.ledger.metadata import NAMING, ROW_ID, TABLE_OPTIONS, UtcTime, exact, hexadecimal

revision = "v0004"
down_revision = "v0003"
branch_labels = None
depends_on = None

TABLE, OLD, NEW = "stageout_transfers", "ix_stageout_transfers_request", "ix_stageout_transfers_request_state_queue"
_metadata = sa.MetaData(naming_convention=NAMING)
stageout_times = sa.Table(
    "stageout_times", _metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("digest", hexadecimal(64), nullable=False),
    sa.Column("day", UtcTime, nullable=False),
    sa.Column("owner", exact(128), nullable=False),
    sa.Column("source", exact(128), nullable=False),
    sa.Column("destination", exact(128), nullable=False),
    sa.Column("bucket", sa.Integer, nullable=False),
    sa.Column("files", sa.Integer, nullable=False),
    sa.UniqueConstraint("digest"),
    sa.Index(None, "day"),
    sqlite_autoincrement=True, **TABLE_OPTIONS,
)  # fmt: skip


def upgrade() -> None:
    connection = op.get_bind()
    stageout_times.create(connection, checkfirst=True)
    for index in stageout_times.indexes:
        index.create(connection, checkfirst=True)
    present = {index["name"] for index in sa.inspect(connection).get_indexes(TABLE)}
    if NEW not in present:  # before the old one goes: MariaDB needs one of them for the foreign key
        op.create_index(NEW, TABLE, ["request", "state", "queue"])
    if OLD in present:
        op.drop_index(OLD, TABLE)
