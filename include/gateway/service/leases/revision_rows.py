"""The revisions that the gateway has found out about: what a change may be derived from, kept over a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.revision.needed_objects import REMEMBERED, KnownRoot

SCHEMA = """
CREATE TABLE IF NOT EXISTS revision (
    repository  TEXT NOT NULL,
    number      INTEGER NOT NULL,
    root        TEXT NOT NULL,
    PRIMARY KEY (repository, number, root)
) WITHOUT ROWID;
"""


def prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(SCHEMA)


def add(connection: sqlite3.Connection, repository: str, revisions: Sequence[KnownRoot]) -> None:
    """Note revisions, and forget those that are long past."""
    connection.executemany(
        "INSERT OR IGNORE INTO revision VALUES (?, ?, ?)",
        [(repository, revision.number, revision.root.text) for revision in revisions],
    )
    newest = max(revision.number for revision in revisions)
    connection.execute("DELETE FROM revision WHERE repository = ? AND number < ?", (repository, newest - REMEMBERED))


def of(connection: sqlite3.Connection, repository: str) -> list[KnownRoot]:
    """What is known of a repository; a row that cannot be read is passed over, and found out again."""
    found = []
    for number, text in connection.execute("SELECT number, root FROM revision WHERE repository = ?", (repository,)):
        try:
            found.append(KnownRoot(ObjectHash.parse(text, suffix=CATALOG), number))
        except CvmfsError:
            continue
    return found
