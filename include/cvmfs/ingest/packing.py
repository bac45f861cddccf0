"""Content into objects: compress, hash, skip what is stored already, hand the rest to the uploaders.

Small files are packed where they are read, or in processes of their own where the store is files; large pieces by one
thread per processor, since compressing leaves the interpreter to others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from include.cvmfs.format.hashes import Algorithm, DigestSet, ObjectHash, hash_bytes, identity
from include.cvmfs.format.objects import Compression, compress
from include.cvmfs.ingest import processes
from include.cvmfs.ingest.content_index import ContentIndex
from include.cvmfs.ingest.processes import keep_freed_memory
from include.cvmfs.ingest.upload import Budget, Uploader
from include.storage.file import FileStore
from include.storage.kinds import FILE
from include.storage.store import Store

T = TypeVar("T")

PACKED_AT_ONCE_BYTES = 64 << 10
ASKED_FILES, ASKED_BYTES = 128, 1 << 20
"""Small files that are looked up in the content index at once, at most, and their bytes."""
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
        store: Store | None,
        *,
        known: Container[bytes],
        algorithm: Algorithm,
        compression: Compression,
        connections: int,
        budget_bytes: int,
        deliver: Callable[[T, bytes], None],
        index: ContentIndex | None = None,
    ) -> None:
        keep_freed_memory()
        self._known = known
        self._algorithm = algorithm
        self._compression = compression
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
        data = compress(content, self._compression)
        hash_ = hash_bytes(data, self._algorithm)
        self.put(hash_, data)
        return hash_.digest

    def _reused(self, keys: Sequence[bytes], suffix: str) -> dict[bytes, bytes]:
        """Digests of contents that were packed before and whose objects need not be sent, by key; each key counts.

        The index names the object; whether the store has it is known only from the known set and from what we sent
        ourselves.
        """
        found = self._index.find(keys) if self._index is not None else {}
        letter = suffix.encode()
        with self._lock:
            there = {
                key: digest
                for key, digest in found.items()
                if digest + letter in self._known or digest + letter in self._sent
            }
            self.objects_reused += len(there) if len(there) == len(keys) else sum(key in there for key in keys)
        return there

    def _start_processes(self) -> None:
        count = processes.useful()
        if count and isinstance(self._store, FileStore):
            self._processes = processes.Processes(
                self._store, algorithm=self._algorithm, compression=self._compression, count=count,
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
        data = compress(content, self._compression)
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
