"""Remembers which object a content became, so that it need not be compressed again on the next night.

A cache of this machine, keyed by SHA-256 of the content: it may be deleted at any time, and whatever is wrong with it
only costs time (docs/decisions, content index). It never decides whether an object must be sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from include.cvmfs.format.hashes import DIGEST_BYTES, Algorithm
from include.cvmfs.format.objects import Compression

ENTRIES = 2_000_000
"""At most twice as many are kept, at about 80 bytes each: those of the current generation and of the one before."""

_log = logging.getLogger(__name__)
# The last two come from cells and names of a database that another program has written, or a disk.
_FAULTS = (OSError, sqlite3.Error, TypeError, ValueError)
_BATCH = 2000
_ASKED_AT_ONCE = 128
_BUSY_MS = 2000
_OPENED_AT_ONCE = 100
_TABLES = """
PRAGMA synchronous = OFF;
PRAGMA cache_size = -8192;
CREATE TABLE IF NOT EXISTS young (key BLOB PRIMARY KEY, object BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS old (key BLOB PRIMARY KEY, object BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS filled (entries INTEGER);
INSERT INTO filled SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM filled);
"""


class ContentIndex:
    """Digests of objects by content, for one way to compress and hash. Safe to share between threads and processes.

    Nothing of it raises: an index that cannot be read or written is left alone, a damaged one is deleted.
    """

    def __init__(self, path: Path, *, algorithm: Algorithm, compression: Compression, entries: int = ENTRIES) -> None:
        self._path = path
        self._way = f"{algorithm.name}/{compression.name} ".encode()
        self._entries = entries
        self._lock = threading.Lock()
        self._new: dict[bytes, bytes] = {}
        self._db: sqlite3.Connection | None = None
        self.hits = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000)
            _write_ahead(self._db)
            self._db.executescript(_TABLES)
        except _FAULTS as fault:
            self._give_up(fault)

    def key(self, content: bytes) -> bytes:
        """Return what a content is remembered by."""
        return self._way + hashlib.sha256(content).digest()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The digests of the objects that contents became, as far as that is remembered and the entries are sound."""
        with self._lock:
            found = {key: entry for key in keys if (entry := self._new.get(key)) is not None}
            asked = [key for key in keys if key not in found] if found else keys
            for start in range(0, len(asked), _ASKED_AT_ONCE):
                found.update(self._look_up(asked[start : start + _ASKED_AT_ONCE]))
        sound = {}
        for key, entry in found.items():
            digest = entry[:DIGEST_BYTES]
            if entry[DIGEST_BYTES:] == _check(key, digest):
                sound[key] = digest
        self.hits += len(sound)
        return sound

    def remember(self, key: bytes, digest: bytes) -> None:
        """Note what a content became; it is written down now and then."""
        with self._lock:
            self._new[key] = digest + _check(key, digest)
            if len(self._new) >= _BATCH:
                self._write()

    def close(self) -> None:
        """Write down what is new."""
        with self._lock:
            self._write()
            if self._db is not None:
                self._db.close()
                self._db = None

    def __enter__(self) -> ContentIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        if self._db is None or not keys:
            return {}
        try:
            found = dict(self._select("young", keys))
            if len(found) < len(keys):
                older = dict(self._select("old", [key for key in keys if key not in found]))
                self._new.update(older)  # what is used goes on into the next generation
                found.update(older)
        except _FAULTS as fault:
            self._give_up(fault)
            return {}
        return found

    def _select(self, table: str, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        assert self._db is not None  # noqa: S101
        marks = ",".join("?" * len(keys))
        rows = self._db.execute(f"SELECT key, object FROM {table} WHERE key IN ({marks})", keys)  # noqa: S608 - our names
        return ((bytes(key), entry if isinstance(entry, bytes) else b"") for key, entry in rows)

    def _write(self) -> None:
        rows = sorted(self._new.items())
        self._new.clear()
        if self._db is None or not rows:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO young VALUES (?, ?)", rows)
            ((filled,),) = self._db.execute("UPDATE filled SET entries = entries + ? RETURNING entries", (len(rows),))
            if filled >= self._entries:
                self._age()
            self._db.execute("COMMIT")
        except _FAULTS as fault:
            self._give_up(fault)

    def _age(self) -> None:
        assert self._db is not None  # noqa: S101
        for statement in (
            "DROP TABLE old",
            "ALTER TABLE young RENAME TO old",
            "CREATE TABLE young (key BLOB PRIMARY KEY, object BLOB) WITHOUT ROWID",
            "UPDATE filled SET entries = 0",
        ):
            self._db.execute(statement)

    def _give_up(self, fault: Exception) -> None:
        """Go on without; a file that is no sound database goes, since it would be in the way for ever."""
        _log.warning("content index %s is not used: %s", self._path, fault)
        if self._db is not None:
            self._db.close()
            self._db = None
        if not isinstance(fault, OSError | sqlite3.OperationalError):
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink()


def _write_ahead(db: sqlite3.Connection) -> None:
    """Let others read while one writes. Raises sqlite3.OperationalError if the database stays locked."""
    for _ in range(_OPENED_AT_ONCE):
        with contextlib.suppress(sqlite3.OperationalError):
            db.execute("PRAGMA journal_mode = WAL")
            return
        # that statement does not wait for those who open a new file at the same moment; a transaction does
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
    raise sqlite3.OperationalError("its mode cannot be set: too many open it at once")


def _check(key: bytes, digest: bytes) -> bytes:
    """A checksum by which an entry written whole for this key differs from one that a disk made of two."""
    return zlib.crc32(digest, zlib.crc32(key)).to_bytes(4, "big")
