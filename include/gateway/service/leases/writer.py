"""The one writer of the gateway's state, and its clock: operations that wait together share a transaction and its
flush."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from include.errors import NightshiftError
from include.gateway.service.clock import Clock

log = logging.getLogger(__name__)

STEP_MS = 5_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS clock (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    wall_ms     INTEGER NOT NULL,                   -- both clocks, when something was written last
    monotonic_ns INTEGER NOT NULL,
    boot        TEXT NOT NULL
);
"""
_TABLES = ("lease", "finished")


def prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(SCHEMA)


def carry_over(connection: sqlite3.Connection, clock: Clock, longest_ns: int) -> None:
    """After a restart: whatever was left goes on, never more than that and never more than ``longest_ns``.

    The wall clock counts always, so a reboot gives no time away; if it is earlier than it was when something was
    written last, as if no time had passed since. On the same boot the monotonic deadline counts too.
    """
    now_ns, now_ms = clock.monotonic_ns(), clock.wall_ms()
    seen = connection.execute("SELECT wall_ms, monotonic_ns, boot FROM clock").fetchone()
    since_ms = now_ms
    if seen is not None:
        # On the same boot the monotonic clock says how late it must be: a wall clock that was set back would prolong
        # every lease. After a reboot only the wall clock is left; if it is behind its last record, the pause counts as
        # none, since ending a lease that its holder still renews costs the holder its work, and a late end costs others
        # a wait.
        same_boot = bool(seen[2]) and seen[2] == clock.boot
        expected_ms = seen[0] + max(0, (now_ns - seen[1]) // 1_000_000) if same_boot else seen[0]
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
            work = [item for item in batch if item is not None]
            if work:
                self._transaction(work)
            if len(work) < len(batch):
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
