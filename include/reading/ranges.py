"""Ranges of bytes: joined where they are near, packed into requests, and placed by what a reply says they are. Pure.

Servers may merge, reorder or leave out parts of a multi-range reply (RFC 9110, 14.2): each is placed by its own
`Content-Range`, whatever was asked for.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from include.reading.errors import FailureKind, ReplicaFailure

Range = tuple[int, int]
"""Offset and length, in bytes."""
MOST_RANGES, MOST_HEADER = 150, 4096
"""Bounds of a request: above 200 Apache sends the whole file, above 8 kB of header nginx refuses."""
JOIN_GAP = 8 << 10
"""Bytes between two ranges that are rather read than left out."""
_LINE, _HEADER_LINES = 8 << 10, 32
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.IGNORECASE)
_EMPTY = re.compile(r"bytes \*/(\d{1,19})", re.IGNORECASE)


def joined(ranges: Iterable[Range], gap: int = JOIN_GAP) -> list[Range]:
    """The ranges in order and apart: what overlaps, or is at most `gap` bytes from the next, is one."""
    result: list[Range] = []
    for offset, length in sorted(ranges):
        if length <= 0:
            continue
        if result and offset <= sum(result[-1]) + gap:
            begin, before = result[-1]
            result[-1] = begin, max(before, offset + length - begin)
        else:
            result.append((offset, length))
    return result


def packed(ranges: Sequence[Range], most: int = MOST_RANGES) -> Iterator[list[Range]]:
    """The ranges of each request: at most `most`, and a header of at most 4 kB."""
    group: list[Range] = []
    size = 0
    for offset, length in ranges:
        needs = len(f"{offset}-{offset + length - 1},")
        if group and (len(group) >= most or size + needs > MOST_HEADER):
            yield group
            group, size = [], 0
        group.append((offset, length))
        size += needs
    if group:
        yield group


def header_of(ranges: Iterable[Range]) -> str:
    """The value of a `Range` header. There are no blanks: Apache sends the whole file where one is after a comma."""
    return "bytes=" + ",".join(f"{offset}-{offset + length - 1}" for offset, length in ranges)


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Place of the bytes of a reply; `total`: the size of the file, None: the server does not say."""

    offset: int
    length: int
    total: int | None

    @classmethod
    def parse(cls, text: str) -> ContentRange:
        """The header's value. Raises ReplicaFailure (WRONG)."""
        match = _CONTENT_RANGE.fullmatch(text.strip())
        if match is None:
            raise ReplicaFailure(FailureKind.WRONG, "a part of the reply does not say where its bytes belong")
        first, last, total = match.groups()
        place = cls(int(first), int(last) - int(first) + 1, None if total == "*" else int(total))
        if place.length <= 0 or (place.total is not None and place.offset + place.length > place.total):
            raise ReplicaFailure(FailureKind.WRONG, "a part of the reply is no range of the file")
        return place


def empty_total(text: str) -> int | None:
    """The size of the file that a refusal of a range (416) names; None: it names none."""
    match = _EMPTY.fullmatch(text.strip())
    return int(match[1]) if match else None


class RangeBuffers:
    """Bytes of some ranges, which arrive in any order; each grows from its beginning on."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = joined(ranges, 0)
        self._offsets = [offset for offset, _ in self._ranges]
        self._buffers = self.room()
        self._filled = [0] * len(self._ranges)

    def room(self) -> list[bytearray]:
        """Memory for all of it."""
        return [bytearray(length) for _, length in self._ranges]

    def missing(self) -> list[Range]:
        """The ranges that have not come yet."""
        return [
            (offset + filled, length - filled)
            for (offset, length), filled in zip(self._ranges, self._filled, strict=True)
            if filled < length
        ]

    def write(self, number: int, place: int, data: memoryview) -> None:
        """Keep bytes of a range, at a place in it."""
        self._buffers[number][place : place + len(data)] = data

    def put(self, offset: int, data: bytes) -> int:
        """Take bytes that belong at an offset; returns how many of them were missing."""
        taken, number = 0, max(0, bisect_right(self._offsets, offset) - 1)
        end = offset + len(data)
        while number < len(self._ranges) and self._offsets[number] < end:
            begin = self._offsets[number] + self._filled[number]
            until = min(end, sum(self._ranges[number]))
            if offset <= begin < until:
                self.write(number, self._filled[number], memoryview(data)[begin - offset : until - offset])
                self._filled[number] += until - begin
                taken += until - begin
            number += 1
        return taken

    def take(self, asked: Range) -> bytes:
        """The bytes of a range, all of which have come."""
        offset, length = asked
        if not length:
            return b""
        number = bisect_right(self._offsets, offset) - 1
        place = offset - self._offsets[number]
        return bytes(memoryview(self._buffers[number])[place : place + length])


class RangesInFile(RangeBuffers):
    """Ranges that go into the same places of a local file."""

    def __init__(self, ranges: Sequence[Range], descriptor: int) -> None:
        super().__init__(ranges)
        self._descriptor = descriptor

    def room(self) -> list[bytearray]:
        return []

    def write(self, number: int, place: int, data: memoryview) -> None:
        place += self._offsets[number]
        while data:
            written = os.pwrite(self._descriptor, data, place)
            data, place = data[written:], place + written


class MultipartReply:
    """A body of the type multipart/byteranges, taken apart as it arrives. Replies are hostile: all is bounded."""

    def __init__(self, blocks: Iterator[bytes], boundary: str, most_parts: int) -> None:
        self._blocks, self._held, self._most = blocks, b"", most_parts
        self._end = b"--" + boundary.encode()

    def parts(self) -> Iterator[tuple[ContentRange, Iterator[bytes]]]:
        """Each part: its place, and its bytes, which have to be read to their end. Raises ReplicaFailure."""
        for _ in range(self._most):
            line = self._line()
            while not line:  # before the first part, and after each
                line = self._line()
            if line == self._end + b"--":
                return
            if line != self._end:
                raise ReplicaFailure(FailureKind.WRONG, "the parts of the reply are not where they should be")
            place = self._head()
            yield place, self._body(place.length)
        raise ReplicaFailure(FailureKind.WRONG, "the reply has more parts than were asked for")

    def _head(self) -> ContentRange:
        place = None
        for _ in range(_HEADER_LINES):
            line = self._line()
            if not line:
                break
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-range":
                place = ContentRange.parse(value.decode("latin-1"))
        if place is None:
            raise ReplicaFailure(FailureKind.WRONG, "a part of the reply does not say where its bytes belong")
        return place

    def _line(self) -> bytes:
        while b"\r\n" not in self._held:
            if len(self._held) > _LINE:
                raise ReplicaFailure(FailureKind.WRONG, "a line of the reply has no end")
            self._held += self._next()
        line, _, self._held = self._held.partition(b"\r\n")
        return line

    def _body(self, length: int) -> Iterator[bytes]:
        while length:
            block = self._held or self._next()
            self._held = block[length:]
            yield block[:length]
            length -= min(length, len(block))

    def _next(self) -> bytes:
        block = next(self._blocks, b"")
        if not block:
            raise ReplicaFailure(FailureKind.CUT, "the reply ended early")
        return block
