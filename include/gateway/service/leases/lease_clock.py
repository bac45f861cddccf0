"""Time for the leases: they end by the monotonic clock; the wall clock is for people, and for what is left at a reboot.

A step of the wall clock moves no deadline. It is noticed, logged, and the wall-clock ends of the leases are written
again from their deadlines, so that nothing lasts longer after a reboot either.
"""

from __future__ import annotations

import logging
import sqlite3

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
    """Whether the wall clock was set since the last look; then the leases' wall-clock ends follow their deadlines."""
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
