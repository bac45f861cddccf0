"""One payload into a repository's store: objects are verified as they come, and only then sent on, some at a time.

Memory is bounded whatever the size of a pack: small objects wait within a budget, large ones lie in a file that has no
name. An object can only ever be written under the key that follows from its hash.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO, cast

from include.cvmfs.format.hashes import CATALOG
from include.cvmfs.ingest.upload import Budget, Uploader
from include.gateway.pack import PackError, PackObject, PackReader
from include.gateway.service.leases.lease_rows import Received
from include.storage.store import Store

IN_MEMORY_BYTES = 4 << 20
BUDGET_BYTES = 32 << 20
CONNECTIONS = 8


class PackReceiver:
    """Feed it the bytes of a pack, then ``finish`` it; or ``abort`` it. One thread at a time.

    ``length``: bytes that the request announces after its message, None if it announces none.
    """

    def __init__(
        self, store: Store, header_size: int, digest: str, *, length: int | None = None, folder: Path | None = None
    ) -> None:
        """Raises PackError."""
        self._reader = PackReader(header_size, digest)
        self._length = length
        self._folder = folder
        self._header_size = header_size
        self._budget = Budget(BUDGET_BYTES)
        self._destination = _Absent(store)
        self._uploader = Uploader(self._destination, connections=CONNECTIONS, budget=self._budget)
        self._gathered = bytearray()
        self._file: BinaryIO | None = None
        self._seen: set[tuple[bytes, str]] = set()
        self._repeated = 0
        self._compared = False

    def feed(self, block: bytes) -> None:
        """Take the next bytes; waits while too much is on its way to the store. Raises PackError, StoreError, OSError.

        After an error it must be aborted.
        """
        for piece in self._reader.feed(block):
            self._compare_length()
            if piece.last and self._file is None:
                data = bytes(self._gathered) + piece.data if self._gathered else piece.data
                self._gathered.clear()
                self._store(piece.object, data)
            elif piece.last:
                self._store(piece.object, self._spooled(piece.data))
            elif piece.object.size <= IN_MEMORY_BYTES:
                self._gathered += piece.data
            else:
                self._spool(piece.data)

    def finish(self) -> Received:
        """All objects are stored, and flushed, when this returns. Raises as ``feed``, and PackError."""
        self._reader.finish()
        self._compare_length()
        self._uploader.__exit__(None, None, None)
        self._destination.flush()
        taken = self._destination
        return Received(
            1, taken.chunks, taken.duplicates + self._repeated, taken.catalogs, taken.bytes, taken.catalog_bytes
        )

    def abort(self, fault: BaseException) -> None:
        """Send nothing more, and leave nothing running. What is stored already stays, named by nothing."""
        if self._file is not None:
            self._file.close()
        self._uploader.__exit__(type(fault), fault, None)

    def _compare_length(self) -> None:
        if self._compared or self._reader.header is None:
            return
        self._compared = True
        announced = self._header_size + self._reader.header.total
        if self._length is None or self._length == announced:
            return
        says = f"Content-Length leaves {self._length} bytes for the pack, its header announces {announced}"
        raise PackError(says)

    def _store(self, packed: PackObject, data: bytes) -> None:
        identity = (packed.hash.digest, packed.hash.suffix)
        if identity in self._seen:
            self._repeated += 1
            return
        self._seen.add(identity)
        self._budget.take(self._uploader.cost(data))
        self._uploader.put(packed.hash.key, data)

    def _spool(self, data: bytes) -> None:
        if self._file is None:
            self._file = cast("BinaryIO", tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115 - until stored
        self._file.write(data)

    def _spooled(self, rest: bytes) -> bytes:
        """The content of the file; its pages come and go as the system likes, and it goes with its last reader."""
        self._spool(rest)
        assert self._file is not None  # noqa: S101 - written to a line above
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        self._file = None
        return cast("bytes", memoryview(mapped))


class _Absent:
    """The store, as the uploader's threads see it: what is there in its full size is not sent again."""

    def __init__(self, store: Store) -> None:
        self.is_local = store.is_local
        self._store = store
        self._lock = threading.Lock()
        self.chunks = self.duplicates = self.catalogs = self.bytes = self.catalog_bytes = 0

    def flush(self) -> None:
        self._store.flush()

    def put(self, key: str, data: bytes) -> None:
        there = self._store.head(key)
        new = there is None or there.size != len(data)
        if new:
            self._store.put(key, data)
        with self._lock:
            if not new:
                self.duplicates += 1
            elif key.endswith(CATALOG):
                self.catalogs += 1
                self.bytes += len(data)
                self.catalog_bytes += len(data)
            else:
                self.chunks += 1
                self.bytes += len(data)
