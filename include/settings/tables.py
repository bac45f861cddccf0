"""The ledger's table of what each store was seen to keep."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Table

from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, metadata

store_traits = Table(
    "store_traits",
    metadata,
    # of URL and endpoint, so that a store that is moved has to be tried anew
    Column("store", hexadecimal(64), primary_key=True),
    Column("name", exact(128), nullable=False),
    Column("url", exact(2048), nullable=False),
    Column("put_if_absent", Boolean, nullable=False),
    Column("replace_if_unchanged", Boolean, nullable=False),
    Column("bulk_delete", Boolean, nullable=False),
    Column("anonymous_read", Boolean),
    Column("etag_quotes", Boolean, nullable=False),
    Column("probed_at", UtcTime, nullable=False),
    **TABLE_OPTIONS,
)
