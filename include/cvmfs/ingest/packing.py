"""Content into objects: compress, hash, skip what is stored already, hand the rest to the uploaders.

Small files are packed where they are read, or in processes of their own where the store is files; large pieces by one
thread per processor, since compressing leaves the interpreter to others. Contents are remembered, so that they need not
be compressed again on the next night.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

from include.cvmfs.format.hashes import DIGEST_BYTES, Algorithm, DigestSet, ObjectHash, hash_bytes, identity
from include.cvmfs.format.objects import Compression, Compressor, compress
from include.cvmfs.ingest import processes
from include.cvmfs.ingest.processes import keep_freed_memory
from include.cvmfs.ingest.upload import Budget, JournaledStore, Uploader
from include.storage.file import FileStore
from include.storage.kinds import FILE
from include.storage.store import Store

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

    def is_new(self) -> bool:
        """Tell whether it remembers no content for this way yet."""
        first, end = self._way, self._way[:-1] + b"!"  # the byte that follows the blank at its end
        try:
            return self._db is not None and not any(
                self._db.execute(f"SELECT 1 FROM {table} WHERE key >= ? AND key < ? LIMIT 1", (first, end)).fetchone()  # noqa: S608 - our names
                for table in ("young", "old")
            )
        except _FAULTS as fault:
            self._give_up(fault)
            return False

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The digests of the objects that contents became, as far as that is remembered and the entries are sound."""
        with self._lock:
            entries = {key: entry for key in keys if (entry := self._new.get(key)) is not None}
            asked = [key for key in keys if key not in entries] if entries else keys
            for start in range(0, len(asked), _ASKED_AT_ONCE):
                entries.update(self._look_up(asked[start : start + _ASKED_AT_ONCE]))
        sound = {}
        for key, entry in entries.items():
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
            entries = dict(self._select("young", keys))
            if len(entries) < len(keys):
                older = dict(self._select("old", [key for key in keys if key not in entries]))
                self._new.update(older)  # what is used goes on into the next generation
                entries.update(older)
        except _FAULTS as fault:
            self._give_up(fault)
            return {}
        return entries

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


T = TypeVar("T")

PACKED_AT_ONCE_BYTES = 64 << 10
ASKED_FILES, ASKED_BYTES = 128, 1 << 20
"""Small files that are looked up in the content index at once, at most, and their bytes."""
LARGE_PIECES_BYTES = 192 << 20
"""Contents in flight from which on pieces are so large that memory is kept for them."""
PROCESSES_AFTER_FILES = 1000
"""Small files that are packed before processes are started for the others: that costs as much as these."""


class Packer(Generic[T]):
    """Makes objects and sees to it that each is in the store, once.

    ``known``: identities (``digests.identity``) that need not be sent. ``index``: spares packing a content again, if
    its object is known. ``deliver`` gets each ticket and its digest (:meth:`take`). Use as a context; leaving it waits
    for the uploads, flushes the store and raises its first error. With ``store`` None nothing is sent, only counted.
    """

    def __init__(
        self,
        store: Store | JournaledStore | None,
        *,
        known: Container[bytes],
        algorithm: Algorithm,
        compressor: Compressor,
        connections: int,
        budget_bytes: int,
        deliver: Callable[[T, bytes], None],
        index: ContentIndex | None = None,
    ) -> None:
        keep_freed_memory(large=budget_bytes >= LARGE_PIECES_BYTES)
        self._known = known
        self._algorithm = algorithm
        compressor.require()
        self._compressor = compressor
        self._deliver = deliver
        self._index = index
        # A hit in the index spares nothing unless the store is known to have the object.
        self._look_up = index is not None and bool(known)
        self._asked: list[tuple[T, bytes, bytes]] = []
        self._asked_bytes = 0
        self._store = store
        self._processes: processes.Processes | None = None
        # Counted down to 0, where processes are started; from -1 that never comes. A process writes its objects itself,
        # which pays for folders: into other stores the threads of the uploader send, and wait for the network anyway.
        self._files_until_processes = PROCESSES_AFTER_FILES if store is not None and store.kind is FILE else -1
        self._sent = DigestSet()
        self._lock = threading.Lock()
        self._budget = Budget(budget_bytes)
        self._uploader = None if store is None else Uploader(store, connections=connections, budget=self._budget)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="pack")
        self.objects_new = 0
        self.objects_reused = 0
        self.bytes_new = 0

    def take(self, ticket: T, content: bytes) -> None:
        """Store a small file's content; ``deliver`` is called in this thread, now or later. Waits when it must."""
        key = self._index.key(content) if self._index is not None else b""
        if not self._look_up:
            self._take(ticket, key, content)
            return
        self._asked.append((ticket, key, content))
        self._asked_bytes += len(content)
        if len(self._asked) >= ASKED_FILES or self._asked_bytes >= ASKED_BYTES:
            self._answer()

    def _answer(self) -> None:
        """Look up the files that wait for it: those whose objects need not be sent are done, the others are packed."""
        asked, self._asked, self._asked_bytes = self._asked, [], 0
        reused = self._reused([key for _, key, _ in asked], "")
        for ticket, key, content in asked:
            digest = reused.get(key)
            if digest is None:
                self._take(ticket, key, content)
            else:
                self._deliver(ticket, digest)

    def _take(self, ticket: T, key: bytes, content: bytes) -> None:
        if self._processes is not None:
            self._budget.check()
            self._processes.pack((ticket, key), content)
            return
        self._files_until_processes -= 1
        if not self._files_until_processes:
            self._start_processes()
        digest = self._pack_now(content)
        if self._index is not None:
            self._index.remember(key, digest)
        self._deliver(ticket, digest)

    def flush(self) -> None:
        """Deliver all tickets."""
        if self._asked:
            self._answer()
        if self._processes is not None:
            self._processes.flush()

    def pack(self, content: bytes) -> bytes:
        """Store a small content at once; its digest. Waits while too much is in flight."""
        return self._pack_now(content)

    def pack_later(self, content: bytes, suffix: str) -> Future[bytes]:
        """Store a large piece's content; its digest, when it is known. Waits while too much is in flight."""
        self._budget.take(len(content))
        return self._pool.submit(self._pack, content, suffix)

    def put(self, hash_: ObjectHash, data: bytes) -> None:
        """Store an object that is packed already. Waits while too much is in flight; raises the first error."""
        if self._claim(identity(hash_), len(data)) and self._uploader:
            self._budget.take(self._uploader.cost(data))
            self._uploader.put(hash_.key, data)
        else:
            self._budget.check()

    def __enter__(self) -> Packer[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Threads of the pool may be waiting for room in the budget, which is never given back after a fault: it fails
        # first. The store is flushed last of all: a changeset names the objects as soon as this returns.
        if fault is not None:
            self._budget.fail(fault)
        try:
            if fault is None:
                self.flush()
            self._end_processes(failed=fault is not None)
        except BaseException as failure:
            self._budget.fail(failure)
            raise
        finally:
            self._pool.shutdown(wait=True, cancel_futures=fault is not None)
            if self._uploader:
                self._uploader.__exit__(kind, fault, trace)
        if fault is None and self._store is not None:
            self._store.flush()

    def _pack_now(self, content: bytes) -> bytes:
        data = compress(content, self._compressor)
        hash_ = hash_bytes(data, self._algorithm)
        self.put(hash_, data)
        return hash_.digest

    def _reused(self, keys: Sequence[bytes], suffix: str) -> dict[bytes, bytes]:
        """Digests of contents that were packed before and whose objects need not be sent, by key; each key counts.

        The index names the object; whether the store has it is known only from the known set and from what we sent
        ourselves.
        """
        entries = self._index.find(keys) if self._index is not None else {}
        letter = suffix.encode()
        with self._lock:
            reused = {
                key: digest
                for key, digest in entries.items()
                if digest + letter in self._known or digest + letter in self._sent
            }
            self.objects_reused += len(reused) if len(reused) == len(keys) else sum(key in reused for key in keys)
        return reused

    def _start_processes(self) -> None:
        count = processes.useful()
        if count and isinstance(self._store, FileStore):
            self._processes = processes.Processes(
                self._store, algorithm=self._algorithm, compressor=self._compressor, count=count,
                deliver=self._packed_elsewhere,
            )  # fmt: skip

    def _packed_elsewhere(self, ticket: tuple[T, bytes], digest: bytes, size: int) -> bool:
        callers, key = ticket
        if self._index is not None:
            self._index.remember(key, digest)
        self._deliver(callers, digest)
        return self._claim(digest, size)

    def _end_processes(self, *, failed: bool) -> None:
        if self._processes is None:
            return
        try:
            if not failed:
                self._processes.finish()
        finally:
            self._processes.kill()

    def _pack(self, content: bytes, suffix: str) -> bytes:
        try:
            return self._pack_one(content, suffix)
        except BaseException as fault:
            self._budget.fail(fault)  # else the preparing side could wait for ever for what is held here
            raise

    def _pack_one(self, content: bytes, suffix: str) -> bytes:
        key = b""
        if self._index is not None:
            key = self._index.key(content)
            if self._look_up and (digest := self._reused([key], suffix).get(key)):
                self._budget.give(len(content))
                return digest
        data = compress(content, self._compressor)
        hash_ = hash_bytes(data, self._algorithm, suffix)
        if self._index is not None:
            self._index.remember(key, hash_.digest)
        if self._claim(identity(hash_), len(data)) and self._uploader:
            self._budget.give(len(content) - self._uploader.cost(data))
            self._uploader.put(hash_.key, data)
        else:
            self._budget.give(len(content))
        return hash_.digest

    def _claim(self, object_id: bytes, size: int) -> bool:
        """Tell whether the object of this identity is ours to send; counts it either way."""
        # One step: two threads with the same content must not both find it absent, and send it twice.
        with self._lock:
            if object_id in self._known or not self._sent.add(object_id):
                self.objects_reused += 1
                return False
            self.objects_new += 1
            self.bytes_new += size
            return True
