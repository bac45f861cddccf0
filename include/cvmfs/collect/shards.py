"""Names of very many objects, divided by the first byte of their digests, in a working folder as soon as they are many.

A record is 22 bytes, as in the lists of condemned objects: digest, suffix letter, hash algorithm.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from include.cvmfs.coordination.condemned import RECORD_BYTES, SHARDS

_PREFIX = "working-"


class WorkingFolder:
    """A private folder below ``parent`` until ``close``. Its lock ends with its process: the next one then removes it.

    Raises OSError.
    """

    def __init__(self, parent: Path) -> None:
        guard = os.open(parent, os.O_RDONLY)  # so that a new folder is locked before another process sees it
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            for left in parent.glob(f"{_PREFIX}*"):
                if (lock := _lock(left)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(lock)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = _lock(self.path)
        finally:
            os.close(guard)

    def close(self) -> None:
        """Remove it; again does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int | None:
    """The descriptor that holds the folder's lock; None while a process holds it, and for a folder that is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


BUDGET_BYTES = 64 << 20


class Shards:
    """A set of records. Only :meth:`shard` gives each once.

    ``folder``: a private one, for what does not fit ``budget`` (bytes in memory). Not for several threads at once.
    Raises OSError where the disk is full.
    """

    def __init__(self, folder: Path, name: str, *, budget: int = BUDGET_BYTES) -> None:
        self._folder = folder / name
        self._budget = budget
        self._held = 0
        self._parts = [bytearray() for _ in range(SHARDS)]
        self._spilled = False
        self.added = 0

    def add(self, records: memoryview | bytes, offsets: Iterable[int]) -> None:
        """Add sorted records; ``offsets``: for each shard, how many records are before its end."""
        begin = 0
        for part, end in zip(self._parts, offsets, strict=True):
            if end != begin:
                part.extend(records[begin * RECORD_BYTES : end * RECORD_BYTES])
                begin = end
        self._count(begin)

    def add_records(self, records: Iterable[bytes]) -> None:
        count = 0
        for record in records:
            self._parts[record[0]] += record
            count += 1
        self._count(count)

    def put(self, number: int, records: bytes) -> None:
        """Add the records of one shard."""
        self._parts[number] += records
        self._count(len(records) // RECORD_BYTES)

    def shard(self, number: int) -> set[bytes]:
        """The records of one shard."""
        return split(self.raw(number))

    def raw(self, number: int) -> bytes:
        """The same as they were added."""
        held = bytes(self._parts[number])
        if self._spilled:
            try:
                return self._file(number).read_bytes() + held
            except FileNotFoundError:
                return held
        return held

    def _count(self, records: int) -> None:
        self.added += records
        self._held += records * RECORD_BYTES
        if self._held > self._budget:
            self._spill()

    def _spill(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number, part in enumerate(self._parts):
            if part:
                with self._file(number).open("ab") as file:
                    file.write(part)
                self._parts[number] = bytearray()
        self._spilled, self._held = True, 0

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:02x}"


def split(records: bytes) -> set[bytes]:
    """Whole records out of joined ones."""
    return {record for (record,) in struct.iter_unpack(f"{RECORD_BYTES}s", records)}


def joined(records: Iterable[bytes]) -> bytes:
    """Records in the order of a list."""
    return b"".join(sorted(records))


def by_shard(records: Iterable[bytes]) -> Mapping[int, set[bytes]]:
    found: dict[int, set[bytes]] = {}
    for record in records:
        found.setdefault(record[0], set()).add(record)
    return found
