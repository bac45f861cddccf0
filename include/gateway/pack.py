"""Object packs, version 2: the body of a payload (docs/formats.md, object packs). Read as a stream, and written."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.objects import hasher
from include.errors import ErrorRow, NightshiftError

VERSION = "V2"
MAX_OBJECTS = 100_000
MAX_HEADER_BYTES = 100 * MAX_OBJECTS
PACK_BYTES = 200 << 20
"""What a stock publisher puts into one pack; an object larger than that gets a pack of its own."""

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
        found = hashlib.sha1(self._text, usedforsecurity=False).hexdigest()
        if not hmac.compare_digest(found.encode(), self._digest.encode("utf-8", "replace")):
            raise PackError(
                f"the header of {self._header_size} bytes has the SHA-1 {found}, announced was {self._digest[:40]!r}"
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
            self._state = hasher(self._current.hash.algorithm)

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


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack to send: header and objects one behind the other."""

    header: PackHeader
    objects: tuple[bytes, ...]

    @classmethod
    def of(cls, objects: Sequence[tuple[ObjectHash, bytes]]) -> Pack:
        """Objects as stored, by their hashes."""
        index = tuple(PackObject(name, len(data)) for name, data in objects)
        return cls(PackHeader(index), tuple(data for _, data in objects))

    @property
    def digest(self) -> str:
        """``payload_digest``: SHA-1 of the header, in hex."""
        return hashlib.sha1(self.header.format(), usedforsecurity=False).hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Yield what is sent after the message."""
        yield self.header.format()
        yield from self.objects


def packs(
    objects: Iterable[tuple[ObjectHash, bytes]], *, capacity: int = PACK_BYTES, most: int = MAX_OBJECTS
) -> Iterator[Pack]:
    """Objects in packs of at most ``capacity`` bytes and ``most`` objects; a larger object goes alone."""
    waiting: list[tuple[ObjectHash, bytes]] = []
    held = 0
    for name, data in objects:
        if waiting and (held + len(data) > capacity or len(waiting) == most):
            yield Pack.of(waiting)
            waiting, held = [], 0
        waiting.append((name, data))
        held += len(data)
    if waiting:
        yield Pack.of(waiting)


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
