"""A payload into a store: an object pack, version 2 (docs/formats.md, object packs), read and verified as it comes.

Objects are sent on, some at a time, only when they have the hash that is their key. Memory is bounded whatever the size
of a pack: small objects wait within a budget, large ones lie in a file that has no name.
"""

from __future__ import annotations

import hashlib
import hmac
import mmap
import re
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.objects import Hasher
from include.cvmfs.ingest.upload import Budget, Uploader
from include.errors import ErrorRow, NightshiftError
from include.gateway.service.leases.lease_rows import Received
from include.storage.store import Store

VERSION = "V2"
MAX_OBJECTS = 100_000
MAX_HEADER_BYTES = 100 * MAX_OBJECTS

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_NAMED = "N "
_SHOWN = 80


class PackError(NightshiftError):
    """A pack that is not taken; the message names what is wrong."""

    code = "pack-invalid"


BAD_HEADER = ErrorRow(PackError, "pack-header-invalid")
"""Wrong line, order or count."""
HEADER_TOO_BIG = ErrorRow(PackError, "pack-header-too-large")
"""More objects, or a longer header, than a pack may have."""
NAMED_OBJECT = ErrorRow(PackError, "pack-object-named")
"""An object under a name of its own: only those named by their hash are taken."""


@dataclass(frozen=True, slots=True)
class PackObject:
    """A line of the index. ``size``: bytes as stored."""

    hash: ObjectHash
    size: int


@dataclass(frozen=True, slots=True)
class PackHeader:
    """The index of a pack, in the order in which the objects follow."""

    objects: tuple[PackObject, ...]

    @property
    def total(self) -> int:
        """Bytes of all objects."""
        return sum(packed.size for packed in self.objects)

    def format(self) -> bytes:
        """The text. Raises PackError for more objects than a pack may have."""
        if len(self.objects) > MAX_OBJECTS:
            raise HEADER_TOO_BIG(f"{len(self.objects)} objects, a pack holds at most {MAX_OBJECTS}")
        lines = [VERSION, f"S{self.total}", f"N{len(self.objects)}", "--"]
        lines += [f"C {packed.hash.text} {packed.size}" for packed in self.objects]
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    @classmethod
    def parse(cls, data: bytes) -> PackHeader:
        """Read :meth:`format`. No bytes at all are a pack without objects. Raises PackError."""
        if len(data) > MAX_HEADER_BYTES:
            raise HEADER_TOO_BIG(f"a header of {len(data)} bytes, at most {MAX_HEADER_BYTES} are taken")
        if not data:
            return cls(())
        try:
            lines = data.decode("ascii").split("\n")
        except UnicodeDecodeError:
            raise BAD_HEADER("the header is not text") from None
        if lines.pop() or len(lines) < 4:
            raise BAD_HEADER("the header ends inside a line or before the index; is header_size right?")
        version, size, number, rule, *index = lines
        if version != VERSION:
            raise BAD_HEADER(f"the header begins with {version[:_SHOWN]!r}, not with {VERSION}")
        if rule != "--":
            raise BAD_HEADER(f"line 4 of the header is {rule[:_SHOWN]!r}, not --")
        total, count = _number(size, "S", 2), _number(number, "N", 3)
        if count > MAX_OBJECTS:
            raise HEADER_TOO_BIG(f"{count} objects are announced, a pack holds at most {MAX_OBJECTS}")
        if count != len(index):
            raise BAD_HEADER(f"{count} objects are announced, but the index has {len(index)} lines")
        header = cls(tuple(_entry(line, place) for place, line in enumerate(index, 5)))
        if header.total != total:
            raise BAD_HEADER(f"{total} bytes are announced, but the index adds up to {header.total}")
        return header


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of an object. ``last``: it is complete, and has its hash; before that nothing may be made of it."""

    object: PackObject
    data: bytes
    last: bool


class PackReader:
    """Takes a pack in blocks of any size and gives out its objects in pieces; keeps the header and nothing else.

    ``header_size`` (bytes) and ``digest`` (SHA-1 of the header in hex) are those in the message before the pack.
    """

    def __init__(self, header_size: int, digest: str) -> None:
        """Raises PackError."""
        if header_size > MAX_HEADER_BYTES:
            raise HEADER_TOO_BIG(f"header_size is {header_size}, at most {MAX_HEADER_BYTES} bytes are taken")
        self._header_size = header_size
        self._digest = digest
        self._text = bytearray()
        self._pending: Iterator[PackObject] = iter(())
        self._left = 0
        self.header: PackHeader | None = None
        self._current: PackObject | None = None
        self._take_header()

    def feed(self, block: bytes) -> Iterator[Piece]:
        """The pieces that a block completes. Raises PackError; the reader is of no use after that."""
        view = memoryview(block)
        if self.header is None:
            missing = self._header_size - len(self._text)
            self._text += view[:missing]
            view = view[missing:]
            if not self._take_header():
                return
        yield from self._empty_ones()
        while len(view):
            if self._current is None:
                raise PackError(f"{len(view)} or more bytes follow the last object of the pack")
            taken = bytes(view[: self._left])
            view = view[len(taken) :]
            self._left -= len(taken)
            self._state.update(taken)
            yield self._piece(taken)
            yield from self._empty_ones()

    def finish(self) -> None:
        """The pack has ended. Raises PackError."""
        if self.header is None:
            raise PackError(f"the pack ends after {len(self._text)} of {self._header_size} bytes of its header")
        if self._current is not None:
            rest = sum(packed.size for packed in self._pending)
            raise PackError(
                f"the pack ends {self._left + rest} bytes too early, in object {self._current.hash.text} "
                f"after {self._current.size - self._left} of {self._current.size} bytes"
            )

    def _take_header(self) -> bool:
        if len(self._text) < self._header_size:
            return False
        digest = hashlib.sha1(self._text, usedforsecurity=False).hexdigest()
        if not hmac.compare_digest(digest.encode(), self._digest.encode("utf-8", "replace")):
            raise PackError(
                f"the header of {self._header_size} bytes has the SHA-1 {digest}, announced was {self._digest[:40]!r}"
            )
        self.header = PackHeader.parse(bytes(self._text))
        self._text.clear()
        self._pending = iter(self.header.objects)
        self._next()
        return True

    def _next(self) -> None:
        self._current = next(self._pending, None)
        if self._current is not None:
            self._left = self._current.size
            self._state = Hasher(self._current.hash.algorithm)

    def _empty_ones(self) -> Iterator[Piece]:
        """Objects of no bytes, which no block completes."""
        while self._current is not None and not self._current.size:
            yield self._piece(b"")

    def _piece(self, data: bytes) -> Piece:
        current = self._current
        assert current is not None  # noqa: S101 - asked for by the callers
        if self._left:
            return Piece(current, data, last=False)
        if self._state.finish() != current.hash.digest:
            raise PackError(f"object {current.hash.text} of {current.size} bytes has another hash")
        self._next()
        return Piece(current, data, last=True)


def _number(line: str, letter: str, place: int) -> int:
    if not line.startswith(letter) or not _NUMBER.fullmatch(line[1:]):
        raise BAD_HEADER(f"line {place} of the header is {line[:_SHOWN]!r}, not {letter} and a number")
    return int(line[1:])


def _entry(line: str, place: int) -> PackObject:
    if line.startswith(_NAMED):
        raise NAMED_OBJECT(f"line {place} of the header is a named object; only objects named by their hash are taken")
    kind, *fields = line.split(" ")
    if kind != "C" or len(fields) != 2 or not _NUMBER.fullmatch(fields[1]):
        raise BAD_HEADER(f"line {place} of the header is {line[:_SHOWN]!r}, not C, a hash and a size")
    try:
        return PackObject(ObjectHash.parse(fields[0]), int(fields[1]))
    except FormatError as error:
        raise BAD_HEADER(f"line {place} of the header: {error}") from None


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
        stored = self._store.head(key)
        new = stored is None or stored.size != len(data)
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
