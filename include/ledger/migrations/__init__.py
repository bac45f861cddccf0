"""The ledger's versions, as Alembic runs them."""
