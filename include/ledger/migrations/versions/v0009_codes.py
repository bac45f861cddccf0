"""Errors by their codes, why a publication was skipped, and which artifact kept it out.

What earlier versions recorded as the name of a class or in the words of a reason is read here once, and nowhere else.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from include.error_names import code_of_name
from include.ledger.metadata import exact, long_text

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

PUBLICATIONS = sa.table(
    "publications",
    sa.column("id", sa.BigInteger),
    sa.column("state", exact(16)),
    sa.column("reason", long_text()),
    sa.column("error_class", exact(128)),
    sa.column("code", exact(128)),
    sa.column("skip_reason", exact(32)),
    sa.column("blocked_by", exact(512)),
)
BLOCKED = "blocked: it depends on "
SKIPPED = {
    "dry run": "dry_run",
    BLOCKED: "blocked",
    "undone at ": "undone",
    "superseded: ": "superseded",
    "not approved: ": "rejected",
}
"""How reasons began, and what they are now."""


def upgrade() -> None:
    _add(sa.Column("code", exact(128)))
    _add(sa.Column("skip_reason", exact(32)))
    _add(sa.Column("blocked_by", exact(512)))
    connection, row = op.get_bind(), PUBLICATIONS.c
    for name in connection.scalars(sa.select(row.error_class).where(row.error_class.is_not(None)).distinct()).all():
        known = sa.update(PUBLICATIONS).where(row.error_class == name)
        connection.execute(known.values(code=code_of_name(name)))
    skipped = row.state == "skipped"
    for words, reason in SKIPPED.items():
        worded = sa.update(PUBLICATIONS).where(skipped, row.reason.startswith(words, autoescape=True))
        connection.execute(worded.values(skip_reason=reason))
    blocked = sa.select(row.id, row.reason).where(row.skip_reason == "blocked")
    for number, reason in connection.execute(blocked).all():
        by = reason.removeprefix(BLOCKED).partition(", which ")[0]
        connection.execute(sa.update(PUBLICATIONS).where(row.id == number).values(blocked_by=by[:512]))


def _add(column: sa.Column[str]) -> None:
    # a migration that was killed half way is started again
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns("publications")}:
        op.add_column("publications", column)
