"""The leases of the gateway: taken, renewed, dropped, fenced, spent; every change is on disk before it is reported.

A lease that is past ``begin_switch`` keeps blocking its path until its commit ends, even if it expires or is dropped
meanwhile: otherwise the next holder could derive its change from a revision that is just being replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.revision.needed_objects import REMEMBERED, KnownRoot
from include.errors import NightshiftError
from include.gateway.protocol import SECOND, LeasePath, format_time
from include.gateway.service.clock import Clock
from include.gateway.service.config import ConfigError
from include.gateway.service.leases import lease_rows
from include.gateway.service.leases.lease_rows import FinishedCommit, LeaseRow, Received, StateError, Writer, new_token
from include.gateway.service.requests import INVALID_LEASE, Refused, go_json

REVISIONS_SCHEMA = """
CREATE TABLE IF NOT EXISTS revision (
    repository  TEXT NOT NULL,
    number      INTEGER NOT NULL,
    root        TEXT NOT NULL,
    PRIMARY KEY (repository, number, root)
) WITHOUT ROWID;
"""


def _add_revisions(connection: sqlite3.Connection, repository: str, revisions: Sequence[KnownRoot]) -> None:
    """Note revisions, and forget those that are long past."""
    connection.executemany(
        "INSERT OR IGNORE INTO revision VALUES (?, ?, ?)",
        [(repository, revision.number, revision.root.text) for revision in revisions],
    )
    newest = max(revision.number for revision in revisions)
    connection.execute("DELETE FROM revision WHERE repository = ? AND number < ?", (repository, newest - REMEMBERED))


def _revisions_of(connection: sqlite3.Connection, repository: str) -> list[KnownRoot]:
    """Return what is known of a repository; a row that cannot be read is passed over, and found out again."""
    revisions = []
    for number, text in connection.execute("SELECT number, root FROM revision WHERE repository = ?", (repository,)):
        try:
            revisions.append(KnownRoot(ObjectHash.parse(text, suffix=CATALOG), number))
        except CvmfsError:
            continue
    return revisions


T = TypeVar("T")
_NEWEST = 0.2  # weight of the lease that ended last in the mean
MayUse = Callable[[LeaseRow | FinishedCommit], bool]
"""Tells if the caller may act on a lease, or ask for the commit that spent it."""


class LeaseGone(NightshiftError):
    """The lease of a running commit expired, was dropped or was replaced: the manifest must not be switched."""

    code = "commit-lease-ended"


@dataclass(frozen=True, slots=True)
class Granted:
    """``left_s`` until it expires; less than the longest time for a lease that was granted before."""

    token: str = field(repr=False)
    row: LeaseRow
    left_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """``remaining_ns`` until the last of the leases in the way expires."""

    remaining_ns: int


@dataclass(frozen=True, slots=True)
class Spent:
    """A lease whose commit made ``revision``, and the roots that it was made from."""

    digest: bytes
    row: LeaseRow
    roots: tuple[ObjectHash, ObjectHash]
    revision: int


def digest_of(token: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


class LeaseTable:
    """A SQLite file with one process and one writer. Changes return futures; reads see what is on disk."""

    def __init__(self, file: Path, *, clock: Clock, max_lease_time_s: float) -> None:
        """Raises ConfigError if another gateway uses the file, or if it is not one of ours."""
        self.clock = clock
        self._longest_ns = round(max_lease_time_s * 1_000_000_000)
        self._switching: set[int] = set()  # epochs; touched by the writer's thread only
        self._unwanted: set[int] = set()  # dropped while switching; likewise
        self._taken_ns: dict[int, int] = {}  # by epoch; likewise
        self._held_s: dict[str, float] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _lock(file)
        try:
            _make_private(file)
            connection = lease_rows.connect(str(file), writer=True)
            _prepare_schema(connection, clock)
            # after the leases: payloads have a trigger on them
            connection.executescript(lease_rows.PAYLOADS_SCHEMA + REVISIONS_SCHEMA + lease_rows.CLOCK_SCHEMA)
            connection.execute("BEGIN IMMEDIATE")
            lease_rows.carry_over(connection, clock, self._longest_ns)
            connection.execute("COMMIT")
            self._reader = lease_rows.connect(str(file), writer=False)
        except sqlite3.Error as error:
            os.close(self._lock_fd)
            raise ConfigError(f"gateway state {file}: {error}; move the file away to start without leases") from None
        except ConfigError:
            os.close(self._lock_fd)
            raise
        self._reading = threading.Lock()
        self._writer = Writer(connection)
        self.is_open = True

    def close(self) -> None:
        """Write what is queued, and let go of the file."""
        self.is_open = False
        self._writer.close()
        with self._reading:
            self._reader.close()
        os.close(self._lock_fd)

    def now_s(self) -> float:
        """The monotonic clock by which leases end, in seconds."""
        return self.clock.monotonic_ns() / SECOND

    def listed(self) -> list[LeaseRow]:
        """The leases that have not expired. Raises StateError."""
        return self._read(lambda reader: lease_rows.listed(reader, self.clock.monotonic_ns()))

    def listing(self) -> bytes:
        """The reply that lists them, however many there are. Raises StateError."""
        rows = self._read(lambda reader: lease_rows.told(reader, self.clock.monotonic_ns()))
        data = {}
        for repository, path, key_id, hostname, expires_ms in rows:
            place = repository + (path or "/")
            data[place] = {
                "key_id": key_id, "path": place, "expires": format_time(expires_ms), "hostname": hostname
            }  # fmt: skip
        return go_json({"data": data, "status": "ok"})

    def remaining_ns(self, path: LeasePath) -> int:
        """Until the last of the leases in the way of ``path`` ends; 0 if there is none. Raises StateError."""
        now = self.clock.monotonic_ns()
        rows = self._read(lambda reader: lease_rows.overlapping(reader, path.repository, path.path))
        return max((row.deadline_ns - now for row in rows if row.deadline_ns > now), default=0)

    def mean_held_s(self, repository: str) -> float | None:
        """Return how long its leases were held of late, until they were given back or spent."""
        return self._held_s.get(repository)

    def valid(self, digest: bytes) -> LeaseRow | None:
        """The lease if it exists and has not expired. Raises StateError."""
        row = self._read(lambda reader: lease_rows.lease_of(reader, digest))
        return row if row and row.deadline_ns > self.clock.monotonic_ns() else None

    def finished(self, digest: bytes) -> FinishedCommit | None:
        """The commit that spent this token, while it is remembered. Raises StateError."""
        return self._read(lambda reader: lease_rows.finished_of(reader, digest, self.clock.monotonic_ns()))

    def disabled(self) -> set[str]:
        rows = self._read(lambda reader: reader.execute("SELECT repository FROM disabled").fetchall())
        return {row[0] for row in rows}

    def acquire(
        self,
        path: LeasePath,
        *,
        key_id: str,
        hostname: str,
        version: int,
        most: int | None = None,
        token: Callable[[int], str] | None = None,
    ) -> Future[Granted | Busy]:
        """Take a lease; with every one that is granted, what has expired is cleared away. ``most``: of this key.

        ``token`` by epoch, for a request that may be repeated: a lease that has this token already is granted again.
        """

        def operation(connection: sqlite3.Connection) -> Granted | Busy:
            now = self.clock.monotonic_ns()
            rows = lease_rows.overlapping(connection, path.repository, path.path)
            in_the_way = [
                max(row.deadline_ns - now, 1_000_000)
                for row in rows
                if row.deadline_ns > now or row.epoch in self._switching
            ]
            for row in rows if token else ():
                before = token(row.epoch) if token else ""
                if (
                    row.path == path.path
                    and row.deadline_ns > now
                    and lease_rows.lease_of(connection, digest_of(before)) == row
                ):
                    return Granted(before, row, (row.deadline_ns - now) / SECOND)
            if in_the_way:
                return Busy(max(in_the_way))
            if connection.execute("SELECT 1 FROM disabled WHERE repository = ?", (path.repository,)).fetchone():
                raise Refused("repo_disabled")
            self._clear_expired(connection, now)
            if most is not None and lease_rows.held(connection, now, key_id) >= most:
                raise Refused("too many leases", f"key {key_id} holds {most}, and no key may hold more; drop some")
            lease_rows.notice_step(connection, self.clock)
            drawn = new_token()
            deadline_ns, expires_ms = now + self._longest_ns, self.clock.wall_ms() + self._longest_ns // 1_000_000
            epoch = connection.execute(
                "INSERT INTO lease (digest, repository, path, key_id, hostname, version, expires_ms, deadline_ns, boot)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING epoch",
                (digest_of(drawn), path.repository, path.path, key_id, hostname, version, expires_ms, deadline_ns,
                 self.clock.boot),
            ).fetchone()[0]  # fmt: skip
            row = LeaseRow(epoch, path.repository, path.path, key_id, hostname, version, expires_ms, deadline_ns)
            if token is not None:
                drawn = token(epoch)
                connection.execute("UPDATE lease SET digest = ? WHERE epoch = ?", (digest_of(drawn), epoch))
            self._taken_ns[epoch] = now
            return Granted(drawn, row, self._longest_ns / SECOND)

        return self._writer.submit(operation)

    def renew(self, digest: bytes, may_use: MayUse, wanted_s: float | None) -> Future[LeaseRow]:
        """Let the lease last ``wanted_s`` from now, at most the maximum. An expired one is refused."""

        def operation(connection: sqlite3.Connection) -> LeaseRow:
            now = self.clock.monotonic_ns()
            lease_rows.notice_step(connection, self.clock)
            row = lease_rows.lease_of(connection, digest)
            if row is None or row.deadline_ns <= now or row.epoch in self._unwanted or not may_use(row):
                raise Refused(INVALID_LEASE)
            length_ns = self._longest_ns if wanted_s is None else min(round(wanted_s * 1e9), self._longest_ns)
            connection.execute(
                "UPDATE lease SET deadline_ns = ?, expires_ms = ? WHERE epoch = ?",
                (now + length_ns, self.clock.wall_ms() + length_ns // 1_000_000, row.epoch),
            )
            renewed = lease_rows.lease_of(connection, digest)
            assert renewed is not None  # noqa: S101 - updated a line above
            return renewed

        return self._writer.submit(operation)

    def drop(self, digest: bytes, may_use: MayUse) -> Future[LeaseRow]:
        """End a lease; an expired one too, as long as its row exists."""

        def operation(connection: sqlite3.Connection) -> LeaseRow:
            row = lease_rows.lease_of(connection, digest)
            if row is None or row.epoch in self._unwanted or not may_use(row):
                raise Refused(INVALID_LEASE)
            self._end(connection, row)
            return row

        return self._writer.submit(operation)

    def drop_below(self, repository: str, path: str) -> Future[list[LeaseRow]]:
        """End all leases at and below a path."""

        def operation(connection: sqlite3.Connection) -> list[LeaseRow]:
            rows = lease_rows.at_or_below(connection, repository, path)
            for row in rows:
                self._end(connection, row)
            return rows

        return self._writer.submit(operation)

    def enable(self, repository: str, enabled: bool) -> Future[None]:
        """Let a repository give out new leases, or not. Lasts over restarts."""

        def operation(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM disabled WHERE repository = ?", (repository,))
            if not enabled:
                connection.execute("INSERT INTO disabled VALUES (?)", (repository,))

        return self._writer.submit(operation)

    def add_payload(self, digest: bytes, epoch: int, received: Received, generation: str) -> Future[Received]:
        """Note what a payload brought; all that came under the lease so far. Raises Refused if the lease is gone.

        ``generation``: of collections, seen before its first object was looked for.
        """

        def operation(connection: sqlite3.Connection) -> Received:
            row = lease_rows.lease_of(connection, digest)
            if row is None or row.epoch != epoch or row.deadline_ns <= self.clock.monotonic_ns():
                raise Refused(INVALID_LEASE, "the lease ended while the payload came")
            lease_rows.add_payload(connection, epoch, received, generation)
            return lease_rows.received(connection, epoch)

        return self._writer.submit(operation)

    def payload_generation(self, epoch: int) -> str:
        """The collection generation at which the lease's first payload was taken; ``""`` if there is none."""
        return self._read(lambda reader: lease_rows.payload_generation(reader, epoch))

    def payloads(self, epoch: int) -> Received:
        """Return what came as payloads under the lease."""
        return self._read(lambda reader: lease_rows.received(reader, epoch))

    def begin_switch(self, leases: Sequence[tuple[bytes, int]]) -> Future[dict[int, LeaseGone]]:
        """The fence, for leases by digest and epoch: which of them have ended, by their place.

        If none has, their paths stay blocked from here on until ``settle``; otherwise nothing is changed.
        """

        def operation(connection: sqlite3.Connection) -> dict[int, LeaseGone]:
            now, gone = self.clock.monotonic_ns(), dict[int, LeaseGone]()
            for place, (digest, epoch) in enumerate(leases):
                row = lease_rows.lease_of(connection, digest)
                if row is None or row.epoch != epoch or epoch in self._unwanted:
                    gone[place] = LeaseGone("the lease was dropped during the commit")
                elif row.deadline_ns <= now:
                    gone[place] = LeaseGone("the lease expired during the commit")
            if not gone:
                self._switching.update(epoch for _, epoch in leases)
            return gone

        return self._writer.submit(operation)

    def settle(self, spent: Sequence[Spent], failed: Sequence[int] = ()) -> Future[None]:
        """The commits of a group ended: leases are spent and their outcomes remembered; those of the epochs that failed
        may try again, unless they were dropped meanwhile.

        If that cannot be written, all of them are as if they had never been about to switch: they end by expiry.
        """

        def operation(connection: sqlite3.Connection) -> None:
            expires_ms = self.clock.wall_ms() + self._longest_ns // 1_000_000
            deadline_ns = self.clock.monotonic_ns() + self._longest_ns
            for lease in spent:
                connection.execute("DELETE FROM lease WHERE epoch = ?", (lease.row.epoch,))
                connection.execute(
                    "INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (lease.digest, lease.row.repository, lease.row.key_id, lease.roots[0].text, lease.roots[1].text,
                     lease.revision, expires_ms, deadline_ns, self.clock.boot),
                )  # fmt: skip
                self._gave_back(lease.row)
                self._forget(lease.row.epoch)
            for epoch in failed:
                if epoch in self._unwanted:
                    connection.execute("DELETE FROM lease WHERE epoch = ?", (epoch,))
                self._forget(epoch)

        def forget(written: Future[None]) -> None:
            if written.exception() is not None:
                for epoch in (*(lease.row.epoch for lease in spent), *failed):
                    self._forget(epoch)

        future = self._writer.submit(operation)
        future.add_done_callback(forget)  # called by the writer's thread, too
        return future

    def revisions(self, repository: str) -> list[KnownRoot]:
        """The revisions that are known of a repository. Raises StateError."""
        return self._read(lambda reader: _revisions_of(reader, repository))

    def remember_revisions(self, repository: str, revisions: Sequence[KnownRoot]) -> None:
        """Note revisions, some time soon: they can be found out again."""
        self._writer.submit(lambda connection: _add_revisions(connection, repository, revisions))

    def held(self) -> int:
        """Return how many leases have not expired. Raises StateError."""
        return self._read(lambda reader: lease_rows.held(reader, self.clock.monotonic_ns()))

    def notice_clock(self) -> Future[bool]:
        """Read the clocks; whether the wall clock was set by more than 5 s since the last reading."""
        return self._writer.submit(lambda connection: lease_rows.notice_step(connection, self.clock))

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._reading:
                return query(self._reader)
        except sqlite3.Error as error:
            raise StateError(str(error)) from None

    def _end(self, connection: sqlite3.Connection, row: LeaseRow) -> None:
        if row.epoch in self._switching:
            self._unwanted.add(row.epoch)
            connection.execute(  # ended at once, so that it stays so if the process dies before the commit has ended
                "UPDATE lease SET deadline_ns = ?, expires_ms = ? WHERE epoch = ?",
                (self.clock.monotonic_ns(), self.clock.wall_ms(), row.epoch),
            )
        else:
            self._gave_back(row)
            connection.execute("DELETE FROM lease WHERE epoch = ?", (row.epoch,))

    def _gave_back(self, row: LeaseRow) -> None:
        taken = self._taken_ns.pop(row.epoch, None)
        if taken is not None:
            held_s = (self.clock.monotonic_ns() - taken) / SECOND
            mean_s = self._held_s.get(row.repository, held_s)
            self._held_s[row.repository] = mean_s + _NEWEST * (held_s - mean_s)

    def _forget(self, epoch: int) -> None:
        self._switching.discard(epoch)
        self._unwanted.discard(epoch)

    def _clear_expired(self, connection: sqlite3.Connection, now_ns: int) -> None:
        expired = connection.execute("SELECT epoch FROM lease WHERE deadline_ns <= ?", (now_ns,)).fetchall()
        for (epoch,) in expired:
            self._taken_ns.pop(epoch, None)
            if epoch not in self._switching:
                connection.execute("DELETE FROM lease WHERE epoch = ?", (epoch,))
        connection.execute("DELETE FROM finished WHERE deadline_ns <= ?", (now_ns,))


def _lock(file: Path) -> int:
    """Hold the state for this process alone; the system lets go of it however the process ends."""
    lock_file = file.with_name(file.name + ".lock")
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            f"gateway state {file} is in use by process {holder}: stop that gateway, or use another state file"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _make_private(file: Path) -> None:
    """Let no other user read the state, nor SQLite's files beside it, which get the mode that the file has by then.

    No umask does this: it would also hide what a commit writes into a store that is a folder.
    """
    file.touch(mode=0o600)
    for path in (file, *(file.with_name(file.name + suffix) for suffix in ("-wal", "-shm"))):
        with contextlib.suppress(FileNotFoundError):
            path.chmod(0o600)


def _prepare_schema(connection: sqlite3.Connection, clock: Clock) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            raise ConfigError("the gateway's state file is another program's database: give the gateway its own")
        connection.executescript(f"BEGIN;{lease_rows.SCHEMA}PRAGMA user_version = {lease_rows.SCHEMA_VERSION};COMMIT;")
        # Numbers go on from the time: a gateway whose state was lost gives none out that was given out before.
        connection.execute("INSERT INTO sqlite_sequence VALUES ('lease', ?)", (clock.wall_ms(),))
    elif version != lease_rows.SCHEMA_VERSION:
        raise ConfigError(
            f"the gateway's state has schema {version}, this is {lease_rows.SCHEMA_VERSION}: use that version"
        )
