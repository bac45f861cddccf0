"""State of the gateway: its rows, and the writer, in which operations that wait together share a transaction."""

from __future__ import annotations

import base64
import hmac
import logging
import queue
import secrets
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.paths import path_and_above
from include.errors import NightshiftError
from include.gateway.service.clock import Clock

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


log = logging.getLogger(__name__)

STEP_MS = 5_000

CLOCK_SCHEMA = """
CREATE TABLE IF NOT EXISTS clock (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    wall_ms     INTEGER NOT NULL,                   -- both clocks, when something was written last
    monotonic_ns INTEGER NOT NULL,
    boot        TEXT NOT NULL
);
"""
_TABLES = ("lease", "finished")


def carry_over(connection: sqlite3.Connection, clock: Clock, longest_ns: int) -> None:
    """After a restart: whatever was left goes on, never more than that and never more than ``longest_ns``.

    The wall clock counts always, so a reboot gives no time away; if it is earlier than it was when something was
    written last, as if no time had passed since. On the same boot the monotonic deadline counts too.
    """
    now_ns, now_ms = clock.monotonic_ns(), clock.wall_ms()
    last = connection.execute("SELECT wall_ms, monotonic_ns, boot FROM clock").fetchone()
    since_ms = now_ms
    if last is not None:
        # On the same boot the monotonic clock says how late it must be: a wall clock that was set back would prolong
        # every lease. After a reboot only the wall clock is left; if it is behind its last record, the pause counts as
        # none, since ending a lease that its holder still renews costs the holder its work, and a late end costs others
        # a wait.
        same_boot = bool(last[2]) and last[2] == clock.boot
        expected_ms = last[0] + max(0, (now_ns - last[1]) // 1_000_000) if same_boot else last[0]
        if abs(now_ms - expected_ms) > STEP_MS if same_boot else now_ms < expected_ms - STEP_MS:
            _log_step(now_ms - expected_ms)
        since_ms = max(now_ms, expected_ms)
    for table in _TABLES:
        rows = connection.execute(f"SELECT rowid, expires_ms, deadline_ns, boot FROM {table}").fetchall()  # noqa: S608
        for rowid, expires_ms, deadline_ns, boot in rows:
            left = min((expires_ms - since_ms) * 1_000_000, longest_ns)
            if boot and boot == clock.boot:
                left = min(left, deadline_ns - now_ns)
            connection.execute(
                f"UPDATE {table} SET deadline_ns = ?, expires_ms = ?, boot = ? WHERE rowid = ?",  # noqa: S608
                (now_ns + left, now_ms + left // 1_000_000, clock.boot, rowid),
            )
    remember(connection, clock)


def notice_step(connection: sqlite3.Connection, clock: Clock) -> bool:
    """Tell whether the wall clock was set since the last look; then the leases' wall-clock ends follow their
    deadlines."""
    now_ns, now_ms = clock.monotonic_ns(), clock.wall_ms()
    seen_ms, seen_ns = connection.execute("SELECT wall_ms, monotonic_ns FROM clock").fetchone()
    step_ms = (now_ms - seen_ms) - (now_ns - seen_ns) // 1_000_000
    remember(connection, clock)
    if abs(step_ms) <= STEP_MS:
        return False
    _log_step(step_ms)
    for table in _TABLES:
        connection.execute(
            f"UPDATE {table} SET expires_ms = ? + (deadline_ns - ?) / 1000000",  # noqa: S608
            (now_ms, now_ns),
        )
    return True


def remember(connection: sqlite3.Connection, clock: Clock) -> None:
    """Write down how late it is."""
    connection.execute(
        "INSERT OR REPLACE INTO clock VALUES (1, ?, ?, ?)", (clock.wall_ms(), clock.monotonic_ns(), clock.boot)
    )


def begin_again(connection: sqlite3.Connection, now_ms: int) -> None:
    """Turn a state from a backup into one to begin with: no lease, no finished commit, no memory of revisions.

    Disabled repositories stay so. Numbers of leases go on from the time, above all that were given out since.
    """
    for table in ("lease", "finished", "payload", "revision", "clock"):
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
    connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'lease'", (now_ms,))


def _log_step(step_ms: int) -> None:
    log.warning(
        "the wall clock was set; leases end as before, by the monotonic clock",
        extra={"fields": {"step_s": step_ms / 1000}},
    )


T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], Any]

_BATCH = 256


class StateError(NightshiftError):
    """The state could not be written; the message is SQLite's."""

    code = "gateway-state-unwritable"


class Writer:
    """A thread that owns the writing connection. An operation's result is given once its transaction is on disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[tuple[Operation, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gateway-state", daemon=True)
        self._closed = threading.Lock()
        self._open = True
        self._thread.start()

    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue an operation. What it raises undoes its own writes only. Raises StateError through the future."""
        future: Future[T] = Future()
        with self._closed:
            if self._open:
                self._waiting.put((operation, future))
            else:
                future.set_exception(StateError("the gateway is stopping"))
        return future

    def close(self) -> None:
        """Finish what is queued, then stop."""
        with self._closed:
            if not self._open:
                return
            self._open = False
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < _BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            # A caller that gave up before its turn wants no lease; from here on it can cancel nothing any more.
            work = [item for item in batch if item is not None and item[1].set_running_or_notify_cancel()]
            if work:
                self._transaction(work)
            if None in batch:
                self._connection.close()
                return

    def _transaction(self, work: list[tuple[Operation, Future[Any]]]) -> None:
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes.extend((future, *self._one(operation)) for operation, future in work)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            for _, future in work:
                future.set_exception(StateError(str(error)))
            return
        for future, result, problem in outcomes:
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def _one(self, operation: Operation) -> tuple[Any, BaseException | None]:
        self._connection.execute("SAVEPOINT one")
        try:
            result = operation(self._connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, and must not end the writer
            self._connection.execute("ROLLBACK TO one")
            self._connection.execute("RELEASE one")
            return None, error
        self._connection.execute("RELEASE one")
        return result, None
