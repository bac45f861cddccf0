"""What payloads brought under a lease, kept with it: it survives a restart and goes when the lease goes."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, dataclass

SCHEMA = """
CREATE TABLE IF NOT EXISTS payload (
    epoch            INTEGER PRIMARY KEY,  -- of the lease
    generation       TEXT NOT NULL,        -- of collections, before the first object came
    payloads         INTEGER NOT NULL,
    chunks_added     INTEGER NOT NULL,
    chunks_duplicated INTEGER NOT NULL,
    catalogs_added   INTEGER NOT NULL,
    uploaded_bytes   INTEGER NOT NULL,
    uploaded_catalog_bytes INTEGER NOT NULL
);
CREATE TRIGGER IF NOT EXISTS payload_goes AFTER DELETE ON lease
    BEGIN DELETE FROM payload WHERE epoch = old.epoch; END;
"""

_COLUMNS = "payloads, chunks_added, chunks_duplicated, catalogs_added, uploaded_bytes, uploaded_catalog_bytes"


@dataclass(frozen=True, slots=True)
class Received:
    """The counters of payloads, as the stock receiver keeps them; sizes in bytes as stored.

    ``chunks_duplicated``: objects that were in the store or came before. Catalogs are counted apart from chunks.
    """

    payloads: int = 0
    chunks_added: int = 0
    chunks_duplicated: int = 0
    catalogs_added: int = 0
    uploaded_bytes: int = 0
    uploaded_catalog_bytes: int = 0

    def __add__(self, other: Received) -> Received:
        return Received(*(left + right for left, right in zip(astuple(self), astuple(other), strict=True)))


def prepare(connection: sqlite3.Connection) -> None:
    """Make the table where there is none; the lease table must be there."""
    connection.executescript(SCHEMA)


def received(connection: sqlite3.Connection, epoch: int) -> Received:
    """All that came under a lease."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM payload WHERE epoch = ?", (epoch,)).fetchone()  # noqa: S608
    return Received(*row) if row else Received()


def generation(connection: sqlite3.Connection, epoch: int) -> str:
    """The token of the collection generation at which the first payload was taken; ``""`` if none was."""
    row = connection.execute("SELECT generation FROM payload WHERE epoch = ?", (epoch,)).fetchone()
    return str(row[0]) if row else ""


def add(connection: sqlite3.Connection, epoch: int, more: Received, token: str) -> None:
    """Add a payload; ``token`` counts with the first one that has one."""
    total = received(connection, epoch) + more
    connection.execute(
        f"INSERT OR REPLACE INTO payload (epoch, generation, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (epoch, generation(connection, epoch) or token, *astuple(total)),
    )
