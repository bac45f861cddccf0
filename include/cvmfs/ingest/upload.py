"""Uploads from many threads over a queue that is bounded in bytes, and the journal of what was sent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol

from include.cvmfs.coordination.generation import CHANGESET_LIFE, CLOCK_SKEW
from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import DIGEST_BYTES, hash_of_key, identity
from include.storage.store import Store

FORMAT = 1
_log = logging.getLogger(__name__)
_NAME = "{}.sent"
_BATCH = 16
_SUM_BYTES = 4
RECORD_BYTES = DIGEST_BYTES + 1 + _SUM_BYTES
_HEAD_BYTES = 4096


class UploadJournal:
    """The journal of one preparation. Nothing of it raises: one that cannot be read or written is done without.

    ``known``: identities of what earlier tries sent. Safe to write from many threads, and from two processes at once.
    """

    def __init__(self, folder: Path, *, about: Iterable[str | None], generation: int, now: datetime) -> None:
        """``about``: what the preparation is of, as store, destination and the source's sum. ``now``: aware."""
        subject = "\0".join(part or "" for part in about)
        self.path = folder / _NAME.format(hashlib.sha256(subject.encode("utf-8", "surrogateescape")).hexdigest()[:40])
        self.known: tuple[bytes, ...] = ()
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._file: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _prune(folder, now)
            entries = _read(self.path, generation, now)
            if entries is None:
                _begin(self.path, generation, now)
            self.known = entries or ()
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND)
            _drop_torn_record(self._file)
        except OSError as fault:
            _log.warning("journal %s is not kept: %s", self.path, fault)

    def note(self, key: str) -> None:
        """The store has acknowledged the object of this key."""
        try:
            object_id = identity(hash_of_key(key))
        except FormatError:
            return
        with self._lock:
            self._waiting.append(_record(object_id))
            if len(self._waiting) >= _BATCH:
                self._write()

    def close(self) -> None:
        """Write down what is left."""
        with self._lock:
            self._write()
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def remove(self) -> None:
        """Remove the journal of a preparation that is done: its changeset replaces it."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> UploadJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        if self._file is None or not data:
            return
        try:
            os.write(self._file, data)  # whole records at the end of the file: one that is cut short is not read
        except OSError as fault:
            _log.warning("journal %s is not kept any more: %s", self.path, fault)
            os.close(self._file)
            self._file = None


class JournaledStore:
    """A store that takes objects, and notes in a journal what it has put."""

    def __init__(self, inner: Store, journal: UploadJournal) -> None:
        self.kind, self.is_local, self.flush = inner.kind, inner.is_local, inner.flush
        self._inner = inner
        self._journal = journal

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, data)
        self._journal.note(key)


def _begin(path: Path, generation: int, now: datetime) -> None:
    head = json.dumps({"format": FORMAT, "generation": generation, "started": now.astimezone(UTC).isoformat()})
    begun = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    begun.write_bytes(head.encode() + b"\n")
    begun.replace(path)  # what is still written to the old file is never read


def _read(path: Path, generation: int, now: datetime) -> tuple[bytes, ...] | None:
    """The entries; None if the journal is absent, of another generation, too old, or not one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head, end, records = data.partition(b"\n")
    try:
        fields = json.loads(head) if end and len(head) < _HEAD_BYTES else {}
        age = now - datetime.fromisoformat(fields["started"])
        if (fields["format"], fields["generation"]) != (FORMAT, generation):
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not -CLOCK_SKEW <= age < CHANGESET_LIFE:
        return None
    whole = len(records) - len(records) % RECORD_BYTES
    pieces = (records[start : start + RECORD_BYTES] for start in range(0, whole, RECORD_BYTES))
    return tuple(object_id for object_id in map(_identity, pieces) if object_id is not None)


def _drop_torn_record(file: int) -> None:
    """Drop what a crash left of a record, or all that is written behind it would be read out of step."""
    head = os.pread(file, _HEAD_BYTES, 0).find(b"\n") + 1
    size = os.fstat(file).st_size
    if head and (size - head) % RECORD_BYTES:
        os.ftruncate(file, size - (size - head) % RECORD_BYTES)


def _record(object_id: bytes) -> bytes:
    padded = object_id.ljust(DIGEST_BYTES + 1, b"\0")
    return padded + zlib.crc32(padded).to_bytes(_SUM_BYTES)


def _identity(record: bytes) -> bytes | None:
    padded, suffix = record[:-_SUM_BYTES], record[DIGEST_BYTES:-_SUM_BYTES]
    if zlib.crc32(padded).to_bytes(_SUM_BYTES) != record[-_SUM_BYTES:]:
        return None
    return padded[:DIGEST_BYTES] + suffix.replace(b"\0", b"")


def _prune(folder: Path, now: datetime) -> None:
    for path in folder.glob(_NAME.format("*")):
        with contextlib.suppress(OSError):
            if now.timestamp() - path.stat().st_mtime > CHANGESET_LIFE.total_seconds():
                path.unlink()


FILE_STORE_THREADS = 4  # files are written by the processor: more threads only fight for the interpreter
_OVERHEAD_BYTES = 16 << 10  # of an object in the queue: some thousand wait, however small they are


class Budget:
    """Bytes that may be held at once. Who asks for more than there are waits; one that is too large goes alone.

    A thread that waits goes on when a quarter of the limit is free: to wake it for each object costs more time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._waiting = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def take(self, count: int) -> None:
        """Wait for room. Raises the failure that was reported, whether room is there or not."""
        with self._changed:
            if self._held + count > self._limit:
                self._waiting += 1
                room = max(count, self._limit // 4)
                while self._failure is None and self._held and self._held + room > self._limit:
                    self._changed.wait()
                self._waiting -= 1
            if self._failure is not None:
                raise self._failure
            self._held += count

    def give(self, count: int) -> None:
        """Give back; a negative ``count`` takes at once, and may overdraw."""
        with self._changed:
            self._held -= count
            if self._waiting and self._held <= self._limit - self._limit // 4:
                self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """From now on, all who ask get this error. The first one is kept."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the failure that was reported, if one was."""
        if self._failure is not None:
            raise self._failure

    @property
    def failed(self) -> bool:
        return self._failure is not None


class Destination(Protocol):
    """Place for objects: a store, or a layer before one."""

    @property
    def is_local(self) -> bool: ...

    def put(self, key: str, data: bytes) -> None: ...


class Uploader:
    """Puts objects with up to ``connections`` threads, started as they are needed.

    Use as a context: it ends when everything is stored, and raises the store's first error. When it is left by another
    error, what still waits is dropped. Either way no thread survives.
    """

    def __init__(self, store: Destination, *, connections: int, budget: Budget) -> None:
        self._store = store
        self._budget = budget
        self._most = min(connections, FILE_STORE_THREADS) if store.is_local else connections
        self._queue: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes) -> None:
        """Hand over an object whose bytes the budget holds already (:meth:`cost`). Raises the first upload's error."""
        self._queue.put((key, data))
        if len(self._threads) < self._most:
            self._start_thread()
        self._budget.check()

    @staticmethod
    def cost(data: bytes) -> int:
        """Bytes of the budget that an object takes while it waits."""
        return len(data) + _OVERHEAD_BYTES

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None:
            self._budget.fail(fault)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if fault is None:
            self._budget.check()

    def _start_thread(self) -> None:
        with self._lock:
            if len(self._threads) < self._most and not self._queue.empty():  # no other was free for the last object
                thread = threading.Thread(target=self._work, name=f"upload-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            key, data = task
            try:
                if not self._budget.failed:
                    self._store.put(key, data)
            except BaseException as fault:  # noqa: BLE001 - raised again on the preparing side
                self._budget.fail(fault)
            finally:
                self._budget.give(self.cost(data))
