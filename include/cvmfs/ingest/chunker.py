"""Content-defined cutting of large files, with the cut marks of the stock tools (docs/formats.md, file chunking).

The rolling value at byte i is ``x = XOR of byte[i-j] << j`` over the last 32 bytes, modulo 2**32. Its bits 31 to 7 are
therefore a sliding window over one bit stream ``y[p] = XOR over b of bit b of byte[p+b]``, which big integers give for
a whole block at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from include.cvmfs.errors import FormatError

_WINDOW = 32  # bytes that the rolling value depends on
_BLOCK = 32 * 1024  # positions scanned together: the integers stay in the processor's cache
_ALL_ONES = 0xFFFFFFFF
_MIDDLE = 0x7FFFFFFF
_FULL_BITS = 25  # bits 31 to 7 are made of whole bytes; the lower ones lack the bytes to come


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Least, average and greatest length of a chunk, in bytes."""

    min: int = 4 << 20
    avg: int = 8 << 20
    max: int = 16 << 20

    def __post_init__(self) -> None:
        if not _WINDOW <= self.min < self.avg < self.max:
            raise FormatError("chunk limits", f"{self.min}/{self.avg}/{self.max}: need {_WINDOW} <= min < avg < max")


class Chunker:
    """Cuts one file that arrives in blocks of any size. The pieces do not depend on how it was fed.

    A file that comes out as a single piece is stored as an ordinary object, not as a chunk. Holds at most one piece and
    one fed block in memory.
    """

    def __init__(self, limits: ChunkLimits | None = None) -> None:
        self.limits = limits or ChunkLimits()
        self._detector = _Detector(self.limits)
        # as they came: the bytes of a piece are copied once, when it is cut
        self._blocks: deque[bytes | memoryview | bytearray] = deque()
        self._held = 0
        self._looked_at = self.limits.min

    def feed(self, data: bytes) -> list[bytes]:
        """Take more of the file; give the pieces that are complete by now."""
        if len(data) >= _BLOCK:
            self._blocks.append(data)
        elif self._blocks and isinstance(last := self._blocks[-1], bytearray) and len(last) < _BLOCK:
            last += data
        else:
            self._blocks.append(bytearray(data))
        self._held += len(data)
        return self._cut(final=False)

    def finish(self) -> list[bytes]:
        """Give what is left, and be ready for another file. An empty file has no pieces."""
        pieces = self._cut(final=True)
        if self._held:
            pieces.append(self._take(self._held))
        self._blocks.clear()
        self._looked_at = self.limits.min
        return pieces

    def _cut(self, *, final: bool) -> list[bytes]:
        pieces: list[bytes] = []
        while True:
            end = min(self._held, self.limits.max)
            if end < self.limits.max and end - self._looked_at < (1 if final else _BLOCK):
                return pieces
            begin = self._looked_at - _WINDOW + 1
            mark = self._detector.first(self._part(begin, end), _WINDOW - 1, end - begin)
            if mark is None:
                self._looked_at = end
                if end < self.limits.max:
                    return pieces
                mark = end - begin
            pieces.append(self._take(begin + mark))
            self._looked_at = self.limits.min

    def _part(self, begin: int, end: int) -> memoryview:
        """The bytes from one position to another; only the blocks that have them are touched."""
        parts, place = [], self._held
        for block in reversed(self._blocks):
            place -= len(block)
            if place < end:
                parts.append(memoryview(block)[max(0, begin - place) : end - place])
            if place <= begin:
                break
        return memoryview(parts[0] if len(parts) == 1 else b"".join(reversed(parts)))

    def _take(self, size: int) -> bytes:
        """Take so many bytes from the front."""
        parts: list[bytes | memoryview | bytearray] = []
        self._held -= size
        while size:
            block = self._blocks.popleft()
            if len(block) > size:
                self._blocks.appendleft(memoryview(block)[size:])
                block = memoryview(block)[:size]
            parts.append(block)
            size -= len(block)
        return b"".join(parts)


class _Detector:
    """Finds the positions whose rolling value is a cut value: within t of 0x7fffffff, or 0xffffffff."""

    def __init__(self, limits: ChunkLimits) -> None:
        threshold = _ALL_ONES // limits.avg
        self._lowest = _MIDDLE - (threshold - 1)
        self._highest = _MIDDLE + (threshold - 1)
        # Near the middle, bit 31 differs from bit 30, and bits 30 down to this many are equal.
        self._equal = 31 - max((threshold - 1).bit_length(), 31 - _FULL_BITS + 1)
        self._or_shifts = _fold_shifts(self._equal - 1)

    def first(self, data: memoryview, start: int, end: int) -> int | None:
        """The first cut position in ``start <= i < end``; the 31 bytes before ``start`` must be there."""
        for block in range(start, end, _BLOCK):
            stop = min(block + _BLOCK, end)
            place = self._first_in(data[block - _WINDOW + 1 : stop])
            if place is not None:
                return block + place
        return None

    def _first_in(self, window: memoryview) -> int | None:
        # One lane of 8 bits per position, the first position in the lowest lane; only bit 0 of a lane means something.
        lanes = len(window) - _WINDOW + 1
        mask = _FULL_MASK if lanes == _BLOCK else _mask(lanes)
        value = int.from_bytes(window, "little")
        stream = value ^ (value >> 9)
        stream ^= stream >> 18
        stream ^= stream >> 36
        changes = stream ^ (stream >> 8)
        later = changes >> 8
        for shift in self._or_shifts:
            later |= later >> shift
        near_middle = ((changes | later) ^ later) & mask
        # A run of ones is seen as a hit where it begins, unless it began before this block.
        if not near_middle and stream & _LEADING_ONES != _LEADING_ONES:
            return None
        place = _first_lane(_all_ones(value, stream) & mask, lanes)
        for lane in _lanes(near_middle, lanes):
            if place is not None and lane > place:
                break
            if self._lowest <= _rolling(window[lane : lane + _WINDOW]) <= self._highest:
                return lane
        return place


def _all_ones(value: int, stream: int) -> int:
    """The lanes whose rolling value is 0xffffffff in all 32 bits."""
    run = stream
    for shift in _AND_SHIFTS:
        run &= run >> shift
    partial = value
    for bit in range(_WINDOW - _FULL_BITS):
        if bit:
            partial ^= value >> (9 * bit)
        run &= partial >> (8 * (31 - bit))
    return run


def _rolling(window: memoryview) -> int:
    x = 0
    for byte in window:
        x = ((x << 1) ^ byte) & _ALL_ONES
    return x


def _fold_shifts(count: int) -> tuple[int, ...]:
    """Shifts by which a value is combined with itself so that each lane covers ``count`` lanes from its own on."""
    shifts = []
    covered = 1
    while covered < count:
        step = min(covered, count - covered)
        shifts.append(8 * step)
        covered += step
    return tuple(shifts)


def _mask(lanes: int) -> int:
    return int.from_bytes(b"\x01" * lanes, "little")


def _lanes(bits: int, lanes: int) -> Iterator[int]:
    flags = bits.to_bytes(lanes, "little")
    lane = flags.find(1)
    while lane >= 0:
        yield lane
        lane = flags.find(1, lane + 1)


def _first_lane(bits: int, lanes: int) -> int | None:
    return next(_lanes(bits, lanes), None) if bits else None


_FULL_MASK = _mask(_BLOCK)
_LEADING_ONES = _mask(_FULL_BITS)
_AND_SHIFTS = _fold_shifts(_FULL_BITS)
