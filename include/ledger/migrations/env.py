"""Alembic's entry: runs the migrations on the connection that `include.ledger.migrate` hands over."""

from alembic import context

from include.ledger.metadata import metadata
from include.ledger.migrate import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
