"""Content into objects: compress, hash, skip what is stored already, hand the rest to the uploaders.

Small files are packed where they are read; large pieces by one thread per processor, since compressing leaves the
interpreter to others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from include.cvmfs.compression import Compression, compress
from include.cvmfs.digests import DigestSet, identity
from include.cvmfs.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.upload import Budget, Uploader
from include.storage.store import Store

PACKED_AT_ONCE_BYTES = 64 << 10


class Packer:
    """Makes objects and sees to it that each is in the store, once.

    ``known``: identities (``digests.identity``) that need not be sent. Use as a context; leaving it waits for the
    uploads and raises the first error of the store. With ``store`` None nothing is sent, only counted.
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
    ) -> None:
        self._known = known
        self._algorithm = algorithm
        self._compression = compression
        self._sent = DigestSet()
        self._lock = threading.Lock()
        self._budget = Budget(budget_bytes)
        self._uploader = None if store is None else Uploader(store, connections=connections, budget=self._budget)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="pack")
        self.objects_new = 0
        self.objects_reused = 0
        self.bytes_new = 0

    def pack(self, content: bytes) -> bytes:
        """Store a small file's content; its digest. Waits while too much is in flight."""
        data = compress(content, self._compression)
        hash_ = hash_bytes(data, self._algorithm)
        self.put(hash_, data)
        return hash_.digest

    def pack_later(self, content: bytes, suffix: str) -> Future[bytes]:
        """Store a large piece's content; its digest, when it is known. Waits while too much is in flight."""
        self._budget.take(len(content))
        return self._pool.submit(self._pack, content, suffix)

    def put(self, hash_: ObjectHash, data: bytes) -> None:
        """Store an object that is packed already. Waits while too much is in flight; raises the first error."""
        if self._claim(hash_, len(data)) and self._uploader:
            self._budget.take(self._uploader.cost(data))
            self._uploader.put(hash_.key, data)
        else:
            self._budget.check()

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None:
            self._budget.fail(fault)
        self._pool.shutdown(wait=True, cancel_futures=fault is not None)
        if self._uploader:
            self._uploader.__exit__(kind, fault, trace)

    def _pack(self, content: bytes, suffix: str) -> bytes:
        try:
            return self._pack_one(content, suffix)
        except BaseException as fault:
            self._budget.fail(fault)  # else the preparing side could wait for ever for what is held here
            raise

    def _pack_one(self, content: bytes, suffix: str) -> bytes:
        data = compress(content, self._compression)
        hash_ = hash_bytes(data, self._algorithm, suffix)
        if self._claim(hash_, len(data)) and self._uploader:
            self._budget.give(len(content) - self._uploader.cost(data))
            self._uploader.put(hash_.key, data)
        else:
            self._budget.give(len(content))
        return hash_.digest

    def _claim(self, hash_: ObjectHash, size: int) -> bool:
        """Whether this object is ours to send; counts it either way."""
        one = identity(hash_)
        with self._lock:
            if one in self._known or not self._sent.add(one):
                self.objects_reused += 1
                return False
            self.objects_new += 1
            self.bytes_new += size
            return True
