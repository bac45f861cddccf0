"""The ledger's table of who published what. A change here needs a migration in `include/ledger/migrations/versions`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata

NAME = exact(128)

provenance = Table(
    "provenance",
    metadata,
    # one row a change of a path; never changed afterwards but for `document`
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("place", hexadecimal(64), nullable=False),
    Column("repository", NAME, nullable=False),
    Column("path", exact(1024), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("root_hash", hexadecimal(64)),
    Column("nested_hash", hexadecimal(64)),
    Column("changeset", hexadecimal(64)),
    Column("source", exact(2048)),
    Column("artifact_sha256", hexadecimal(64)),
    Column("slot", NAME),
    Column("build_id", NAME),
    Column("project", NAME),
    Column("platform", NAME),
    Column("run_id", exact(512), nullable=False),
    Column("holder", exact(512), nullable=False),
    Column("publisher", exact(32), nullable=False),
    Column("key_id", NAME, nullable=False),
    Column("published_at", UtcTime, nullable=False),
    # the key of the signed document in the repository's store, once it is there
    Column("document", exact(512)),
    # None: a tree
    Column("kind", exact(16)),
    Column("came_from", exact(1024)),
    Column("from_build", NAME),
    Column("leads_to", long_text()),
    Column("before", long_text()),
    Column("reason", long_text()),
    Index(None, "place"),
    Index(None, "repository", "revision"),
    **TABLE_OPTIONS,
)
