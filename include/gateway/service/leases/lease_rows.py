"""Leases, payloads and finished commits as they lie in the gateway's SQLite file, and the queries on them."""

from __future__ import annotations

import base64
import hmac
import secrets
import sqlite3
from dataclasses import astuple, dataclass

from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.paths import path_and_above

PAYLOADS_SCHEMA = """
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

_PAYLOAD_COLUMNS = "payloads, chunks_added, chunks_duplicated, catalogs_added, uploaded_bytes, uploaded_catalog_bytes"


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


def prepare_payloads(connection: sqlite3.Connection) -> None:
    """Make the table where there is none; the lease table must be there."""
    connection.executescript(PAYLOADS_SCHEMA)


def received(connection: sqlite3.Connection, epoch: int) -> Received:
    """All that came under a lease."""
    row = connection.execute(f"SELECT {_PAYLOAD_COLUMNS} FROM payload WHERE epoch = ?", (epoch,)).fetchone()  # noqa: S608
    return Received(*row) if row else Received()


def payload_generation(connection: sqlite3.Connection, epoch: int) -> str:
    """The token of the collection generation at which the first payload was taken; ``""`` if none was."""
    row = connection.execute("SELECT generation FROM payload WHERE epoch = ?", (epoch,)).fetchone()
    return str(row[0]) if row else ""


def add_payload(connection: sqlite3.Connection, epoch: int, more: Received, token: str) -> None:
    """Add a payload; ``token`` counts with the first one that has one."""
    total = received(connection, epoch) + more
    connection.execute(
        f"INSERT OR REPLACE INTO payload (epoch, generation, {_PAYLOAD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (epoch, payload_generation(connection, epoch) or token, *astuple(total)),
    )


def new_token() -> str:
    """Drawn by chance."""
    return base64.b32encode(secrets.token_bytes(32)).decode()


def token_of(secret: str, request: bytes, epoch: int) -> str:
    """That of a request with a number of its own: found again from the same request, so that nothing is kept for it."""
    return base64.b32encode(hmac.digest(secret.encode(), b"lease %d\n%b" % (epoch, request), "sha256")).decode()


SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE lease (
    epoch       INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: the fence of a commit
    digest      BLOB NOT NULL UNIQUE,               -- SHA-256 of the token; the token itself is nowhere
    repository  TEXT NOT NULL,
    path        TEXT NOT NULL,
    key_id      TEXT NOT NULL,
    hostname    TEXT NOT NULL,
    version     INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,                   -- wall clock
    deadline_ns INTEGER NOT NULL,                   -- monotonic clock of this boot
    boot        TEXT NOT NULL
);
CREATE INDEX lease_place ON lease (repository, path);
CREATE INDEX lease_deadline ON lease (deadline_ns);
CREATE TABLE finished (
    digest      BLOB PRIMARY KEY,
    repository  TEXT NOT NULL,
    key_id      TEXT NOT NULL,
    old_root    TEXT NOT NULL,
    new_root    TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    deadline_ns INTEGER NOT NULL,
    boot        TEXT NOT NULL
);
CREATE INDEX finished_deadline ON finished (deadline_ns);
CREATE TABLE disabled (repository TEXT PRIMARY KEY);
"""

_COLUMNS = "epoch, repository, path, key_id, hostname, version, expires_ms, deadline_ns"


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease; ``path`` is ``""`` for the whole repository."""

    epoch: int
    repository: str
    path: str
    key_id: str
    hostname: str
    version: int
    expires_ms: int
    deadline_ns: int

    @property
    def full_path(self) -> str:
        return self.repository + (self.path or "/")


@dataclass(frozen=True, slots=True)
class FinishedCommit:
    """A commit that made a revision, kept for a while so that its repetition gets the same answer."""

    repository: str
    key_id: str
    old_root: str
    new_root: str
    revision: int

    def made_from(self, old_root: ObjectHash, new_root: ObjectHash) -> bool:
        return (self.old_root, self.new_root) == (old_root.text, new_root.text)


def connect(path: str, *, writer: bool) -> sqlite3.Connection:
    """A connection in autocommit mode; what the writer commits is on disk when COMMIT returns."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout = 60000")
    if writer:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    else:
        connection.execute("PRAGMA query_only = ON")
    return connection


def lease_of(connection: sqlite3.Connection, digest: bytes) -> LeaseRow | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM lease WHERE digest = ?", (digest,)).fetchone()  # noqa: S608
    return LeaseRow(*row) if row else None


def finished_of(connection: sqlite3.Connection, digest: bytes, now_ns: int) -> FinishedCommit | None:
    row = connection.execute(
        "SELECT repository, key_id, old_root, new_root, revision FROM finished WHERE digest = ? AND deadline_ns > ?",
        (digest, now_ns),
    ).fetchone()
    return FinishedCommit(*row) if row else None


def listed(connection: sqlite3.Connection, now_ns: int) -> list[LeaseRow]:
    """The leases that have not expired, sorted by repository and path."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM lease WHERE deadline_ns > ?", (now_ns,))  # noqa: S608
    return sorted((LeaseRow(*row) for row in rows), key=lambda row: row.full_path)


def told(connection: sqlite3.Connection, now_ns: int) -> list[tuple[str, str, str, str, int]]:
    """The public fields of the leases that have not expired, sorted."""
    return connection.execute(
        "SELECT repository, path, key_id, hostname, expires_ms FROM lease WHERE deadline_ns > ?"
        " ORDER BY repository || CASE path WHEN '' THEN '/' ELSE path END",
        (now_ns,),
    ).fetchall()


def held(connection: sqlite3.Connection, now_ns: int, key_id: str | None = None) -> int:
    """Return how many leases have not expired, of one key or of all."""
    sql = "SELECT count(*) FROM lease WHERE deadline_ns > ?1 AND (?2 IS NULL OR key_id = ?2)"
    return int(connection.execute(sql, (now_ns, key_id)).fetchone()[0])


def overlapping(connection: sqlite3.Connection, repository: str, path: str) -> list[LeaseRow]:
    """All leases, expired ones too, at, above and below ``path``."""
    above = path_and_above(path)
    marks = ",".join("?" * len(above))
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM lease WHERE repository = ? AND path IN ({marks})"  # noqa: S608
        f" UNION SELECT {_COLUMNS} FROM lease WHERE repository = ? AND path >= ? AND path < ?",
        (repository, *above, repository, path + "/", path + "0"),  # "0" is what follows "/" in the order of bytes
    )
    return [LeaseRow(*row) for row in rows]


def at_or_below(connection: sqlite3.Connection, repository: str, path: str) -> list[LeaseRow]:
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM lease WHERE repository = ? AND (path = ? OR (path >= ? AND path < ?))",  # noqa: S608
        (repository, path, path + "/", path + "0"),
    )
    return [LeaseRow(*row) for row in rows]
