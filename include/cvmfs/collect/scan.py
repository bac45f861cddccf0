"""Names of very many objects: what a catalog names, taken out by one SQL value and kept on the local disk; and sets.

A catalog never changes, so what it names is read from the store once. What is kept carries its own checksum: a file
that rotted must not make a collection believe that something is needed by nothing. A record is 22 bytes, as in the
lists of condemned objects: digest, suffix letter, hash algorithm.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import secrets
import shutil
import sqlite3
import struct
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from include.cvmfs.coordination.condemned import RECORD_BYTES, SHARDS, hashes_in, records_of
from include.cvmfs.errors import CatalogError, CvmfsError
from include.cvmfs.format.catalogs import CATALOG_BYTES
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.layout import shape_of
from include.cvmfs.format.objects import load
from include.cvmfs.format.schema import open_image, read_properties, read_schema, schema_fault
from include.storage.store import Store

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


_MAGIC = b"nightshift scan 3\n"
_CHECKSUM_BYTES = 16
_AT_ONCE = 16
_FLAGS = "(flags & 128) = 0"  # files that lie elsewhere are not in the store
_ALGORITHM = "CASE (flags >> 8) & 7 WHEN 0 THEN '00' WHEN 1 THEN '01' WHEN 2 THEN '02' ELSE 'xx' END"
_NAMES = f"""
SELECT group_concat(name, '') FROM (
  SELECT hex(hash) || '00' || {_ALGORITHM} AS name FROM catalog
    WHERE hash IS NOT NULL AND length(hash) > 0 AND {_FLAGS}
  UNION
  SELECT hex(chunks.hash) || '50' || {_ALGORITHM} FROM chunks JOIN catalog USING (md5path_1, md5path_2) WHERE {_FLAGS}
  ORDER BY 1)
"""  # noqa: S608
# Stock tools store a copy of such a file all the same. No reader asks for it, so it may be absent, but it is no orphan.
_ELSEWHERE = f"""
SELECT group_concat(name, '') FROM (
  SELECT hex(hash) || '00' || {_ALGORITHM} AS name FROM catalog
    WHERE flags & 128 AND typeof(hash) = 'blob' AND length(hash) = 20 AND (flags >> 8) & 7 < 3
  UNION
  SELECT hex(chunks.hash) || '50' || {_ALGORITHM} FROM chunks JOIN catalog USING (md5path_1, md5path_2)
    WHERE flags & 128 AND typeof(chunks.hash) = 'blob' AND length(chunks.hash) = 20 AND (flags >> 8) & 7 < 3
  ORDER BY 1)
"""  # noqa: S608
_UNSOUND = f"""
SELECT count(*) FROM (
  SELECT hash FROM catalog WHERE hash IS NOT NULL AND length(hash) > 0 AND {_FLAGS}
    AND (typeof(hash) <> 'blob' OR length(hash) <> 20)
  UNION ALL
  SELECT chunks.hash FROM chunks LEFT JOIN catalog USING (md5path_1, md5path_2)
    WHERE typeof(chunks.hash) <> 'blob' OR length(chunks.hash) <> 20)
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class CatalogNames:
    """The data objects of one catalog, sorted; how many of them are before the end of each shard; what is mounted.

    ``previous``: of a root catalog, the root of the revision before. ``elsewhere``: files that lie elsewhere, of which
    there may be copies.
    """

    records: bytes | memoryview
    offsets: array[int]
    nested: tuple[ObjectHash, ...]
    previous: ObjectHash | None = None
    elsewhere: bytes | memoryview = b""


def read_names(database: bytes, name: ObjectHash) -> CatalogNames:
    """Take them out of the SQLite file of a catalog. Raises CatalogError for a damaged one."""
    try:
        connection = open_image(database)
    except sqlite3.Error as error:
        raise CatalogError("", f"catalog {name}: {error}") from error
    try:
        read_schema(connection)
        properties = read_properties(connection)
        if (fault := schema_fault(properties)) is not None:
            raise CatalogError(str(properties.get("root_prefix") or ""), f"catalog {name} {fault}")
        (unsound,) = connection.execute(_UNSOUND).fetchone()
        if unsound:
            raise CatalogError("", f"catalog {name}: {unsound} hashes are not 20 bytes")
        (text,) = connection.execute(_NAMES).fetchone()
        (elsewhere,) = connection.execute(_ELSEWHERE).fetchone()
        rows = list(connection.execute("SELECT sha1 FROM nested_catalogs ORDER BY path"))
        if shape_of(connection).has_binds:
            rows += connection.execute("SELECT sha1 FROM bind_mountpoints ORDER BY path")
        records, outside = bytes.fromhex(text or ""), bytes.fromhex(elsewhere or "")
        nested = tuple(ObjectHash.parse(str(row[0]), suffix=CATALOG) for row in rows)
        before = str(properties.get("previous_revision") or "")
        previous = ObjectHash.parse(before, suffix=CATALOG) if before else None
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise CatalogError("", f"catalog {name} cannot be read: {error}") from error
    finally:
        connection.close()
    return CatalogNames(records, _offsets(records), nested, previous, outside)


def _offsets(records: bytes) -> array[int]:
    counts = [0] * SHARDS
    for first in records[::RECORD_BYTES]:
        counts[first] += 1
    return array("I", itertools.accumulate(counts))


class ScanCache:
    """Names of catalogs, out of a folder or of the store. Safe to share between threads."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self.fetched = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, name: ObjectHash) -> CatalogNames:
        """Raises ObjectMissing, ObjectDamaged, CatalogError, StoreError, OSError for a disk that is full."""
        file = self._file(name)
        try:
            return _unpacked(file.read_bytes())
        except FileNotFoundError:
            pass
        except (ValueError, struct.error):
            with suppress(FileNotFoundError):
                file.unlink()
        names = read_names(load(self._store, name.with_suffix(CATALOG), limit=CATALOG_BYTES), name)
        self.fetched += 1
        file.parent.mkdir(mode=0o700, exist_ok=True)
        staged = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        try:
            staged.write_bytes(_packed(names))
            with suppress(FileNotFoundError):  # a collection that ended tidied up: what is kept is kept for speed only
                staged.replace(file)
        finally:
            staged.unlink(missing_ok=True)
        return names

    def forget(self, seen: Callable[[bytes], bool]) -> int:
        """Remove what is kept of catalogs of other digests; how many."""
        gone = 0
        for folder in os.scandir(self._folder):
            for file in os.scandir(folder) if folder.is_dir() else ():
                try:
                    digest = bytes.fromhex(folder.name + file.name[:38])
                except ValueError:
                    digest = b""
                if not seen(digest):
                    with suppress(FileNotFoundError):
                        Path(file.path).unlink()
                        gone += 1
        return gone

    def _file(self, name: ObjectHash) -> Path:
        text = name.with_suffix("").text
        return self._folder / text[:2] / text[2:]


def walk(
    cache: ScanCache, roots: Iterable[ObjectHash], seen: set[bytes], take: Callable[[ObjectHash, CatalogNames], None],
    *, absent: Callable[[ObjectHash, Exception], None] | None = None, on_step: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Hand out what each catalog at and below the roots names, each catalog once; those of ``seen`` are left out.

    ``seen``: digests; grows. ``absent`` is called for a catalog that cannot be read; without it the error is raised.
    """
    waiting: deque[ObjectHash] = deque(roots)
    running: deque[tuple[ObjectHash, Future[CatalogNames]]] = deque()
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scan")
    try:
        while waiting or running:
            while waiting and len(running) < 2 * _AT_ONCE:
                name = waiting.pop()
                if name.digest not in seen:
                    seen.add(name.digest)
                    running.append((name, pool.submit(cache.names, name)))
            if not running:
                continue
            name, job = running.popleft()
            try:
                names = job.result()
            except CvmfsError as fault:
                if absent is None:
                    raise
                absent(name, fault)
                continue
            take(name, names)
            waiting.extend(names.nested)
            on_step()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def line_of(
    cache: ScanCache, starts: Iterable[ObjectHash], among: Collection[ObjectHash], on_step: Callable[[], None]
) -> dict[bytes, bytes | None]:
    """The revisions that lead to ``starts``, and these, as far as ``among`` has them: digest to that of the next one.

    All of ``among`` are read, several at once. Where one is missing or damaged the line ends. Raises StoreError.
    """

    def before(name: ObjectHash) -> ObjectHash | None:
        with suppress(CvmfsError):
            return cache.names(name).previous
        return None

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scan") as pool:
        jobs = {name.digest: pool.submit(before, name) for name in among}
        line = dict[bytes, bytes | None]()
        for start in starts:
            at: ObjectHash | None = start
            after: bytes | None = None
            while at is not None and at.digest in jobs:
                if line.get(at.digest) is not None:
                    break
                line[at.digest], after = after, at.digest
                at = jobs[at.digest].result()
                on_step()
        for job in jobs.values():
            job.result()
            on_step()
    return line


def _packed(names: CatalogNames) -> bytes:
    nested = records_of(names.nested)
    previous = b"" if names.previous is None else records_of([names.previous])
    sizes = struct.pack("<IIII", len(nested), len(previous), len(names.records), len(names.elsewhere))
    data = _MAGIC + sizes + names.offsets.tobytes() + nested + previous
    data += names.records
    data += names.elsewhere
    return data + hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def _unpacked(data: bytes) -> CatalogNames:
    """Raises ValueError or struct.error for what is not whole."""
    body, checksum = memoryview(data)[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != checksum or not data.startswith(_MAGIC):
        raise ValueError("not what was written")
    offsets = array("I")
    nested_bytes, previous_bytes, records_bytes, elsewhere = struct.unpack_from("<IIII", body, len(_MAGIC))
    at = len(_MAGIC) + 16
    offsets.frombytes(body[at : at + SHARDS * offsets.itemsize])
    at += SHARDS * offsets.itemsize
    nested = tuple(hashes_in(bytes(body[at : at + nested_bytes])))
    at += nested_bytes
    previous = next(hashes_in(bytes(body[at : at + previous_bytes])), None)
    at += previous_bytes
    end = at + records_bytes
    return CatalogNames(body[at:end], offsets, nested, previous, body[end : end + elsewhere])
