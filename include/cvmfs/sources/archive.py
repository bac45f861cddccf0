"""The bytes of an archive: counted, summed and unpacked (.gz, .xz, .zst by their magic) as they pass, never kept.

Whatever an archive claims, at most two blocks and one decompressor's window of it are in memory. A thread reads and
sums up the next block meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache
from typing import Any, BinaryIO, ClassVar

import zstandard

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.sources.source import SourceLimits, printable

_BLOCK = 1 << 20
_ZSTD_INPUT = 1 << 10  # its decompressor cannot be stopped; this much input gives at most 32 MiB
_WINDOW_BYTES = 128 << 20
_MAGIC_BYTES = 6
_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # preceded by a byte 0x50 to 0x5f
_ZSTD_HEADER_BYTES = 18  # of a frame, at most
_DICTIONARY_BYTES = 256 << 20
_XZ_OWN_BYTES = 1 << 20  # that unpacking takes beside the dictionary
_XZ_HEADERS_BYTES = 12 + 1024  # of a stream and of its first block, at most
_LZMA2 = 0x21


class ArchiveBytes:
    """The unpacked bytes of one archive. Iterate once; afterwards :meth:`verify` checks whether it was the right one.

    ``packed=False`` gives the bytes as they are.
    """

    def __init__(
        self,
        stream: BinaryIO | Iterable[bytes],
        name: str,
        *,
        sha256: str | None = None,
        size: int | None = None,
        limits: SourceLimits | None = None,
        packed: bool = True,
    ) -> None:
        self.name = printable(name)
        self.received = 0
        self._blocks = blocks_of(stream)
        self._packed = packed
        self._sum = hashlib.sha256()
        self._sha256 = sha256.lower() if sha256 else None
        self._size = size
        self._limits = limits or SourceLimits()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-archive")
        self._ahead: Future[bytes | None] | None = None
        self._reading_in = 0

    def __iter__(self) -> Iterator[bytes]:
        raw = self._raw()
        first = b""
        for block in raw:
            first += block
            if len(first) >= _MAGIC_BYTES:
                break
        if not first:
            raise self.damaged("is empty")
        codec = _codec_of(first) if self._packed else None
        return _chained(first, raw) if codec is None else self._unpacked(codec, _chained(first, raw))

    def close(self) -> None:
        """Nothing is read any more when this returns.

        It joins no thread: entries that were not taken to their end are closed by the garbage collector, which runs
        anywhere, also in a thread that is just being started and holds the lock that a join takes.
        """
        self._reader.shutdown(wait=False, cancel_futures=True)
        if self._ahead is not None and self._reading_in != threading.get_ident():
            with contextlib.suppress(CancelledError):
                self._ahead.exception()

    def verify(self) -> str:
        """Read what is left, compare length and sum with what was announced, return the sum. Raises SourceError."""
        for _ in self._raw():
            pass
        digest = self._sum.hexdigest()
        if self._size is not None and self.received != self._size:
            raise self.damaged(f"has {self.received} bytes where {self._size} are expected")
        if self._sha256 is not None and digest != self._sha256:
            raise self.damaged(f"has sha256 {digest} where {self._sha256} is expected")
        return digest

    def damaged(self, problem: str) -> SourceError:
        """The error for an archive whose bytes are not what they should be."""
        return SourceError(self.name, f"{problem}; fetch or pack the artifact again, or correct its index")

    def truncated(self) -> SourceError:
        expected = "" if self._size is None or self._size == self.received else f" of {self._size} expected"
        return self.damaged(f"is truncated: it ends after {self.received} bytes{expected}")

    def _raw(self) -> Iterator[bytes]:
        self._ahead = self._reader.submit(self._next)
        while (block := self._ahead.result()) is not None:
            self._ahead = self._reader.submit(self._next)
            self.received += len(block)
            if self._size is not None and self.received > self._size:
                raise self.damaged(f"has more than the {self._size} bytes that are expected")
            yield block

    def _next(self) -> bytes | None:
        self._reading_in = threading.get_ident()
        block = next(self._blocks, None)
        if block is not None:
            self._sum.update(block)
        return block

    def _unpacked(self, codec: type[_Codec], blocks: Iterator[bytes]) -> Iterator[bytes]:
        produced = 0
        stream: _Codec | None = None
        for block in blocks:
            left = block
            while left or (stream is not None and stream.more):
                if stream is None:
                    left = left.lstrip(b"\0") if codec.padded else left
                    if not left:
                        break
                    if not (left.startswith(codec.magic) or codec.magic.startswith(left)):
                        raise self.damaged("has bytes after its end")
                    stream = codec()
                try:
                    data, left = stream.feed(left)
                except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as fault:
                    if need := stream.too_large():
                        raise SOURCE_LIMIT_EXCEEDED(self.name, f"needs {need}") from fault
                    raise self.damaged(f"is damaged after {self.received} bytes, or has bytes after its end") from fault
                produced += len(data)
                if produced > self._limits.ratio_from and produced > self._limits.ratio * self.received:
                    problem = f"unpacks to more than {self._limits.ratio} times its size, as archive bombs do"
                    raise SOURCE_LIMIT_EXCEEDED(self.name, f"{problem}; raise the limit if this is meant")
                if data:
                    yield data
                if stream.ended:
                    stream = None
        if stream is not None:
            raise self.truncated()


class ArchiveSource:
    """An archive as the source of a tree. ``stream``: a binary file, or blocks of bytes as they arrive.

    ``sha256`` and ``size`` (bytes) are what the archive as stored must have; entries end with SourceError if not.
    """

    packed: ClassVar = True

    def __init__(
        self,
        stream: BinaryIO | Iterable[bytes],
        name: str,
        *,
        sha256: str | None = None,
        size: int | None = None,
        limits: SourceLimits | None = None,
    ) -> None:
        self.name = name
        self._limits = limits or SourceLimits()
        self._bytes = ArchiveBytes(stream, name, sha256=sha256, size=size, limits=limits, packed=self.packed)
        self._sha256: str | None = None

    @property
    def sha256(self) -> str | None:
        return self._sha256


class Reader:
    """Takes exact counts of bytes from blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._buffer = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """``count`` bytes; fewer only at the end."""
        end = self._at + count
        if end <= len(self._buffer):
            data = self._buffer[self._at : end]
            self._at = end
            return data
        parts = [self._buffer[self._at :]]
        missing = end - len(self._buffer)
        self._buffer, self._at = b"", 0
        for block in self._blocks:
            if missing < len(block):
                self._buffer, self._at = block, missing
                parts.append(block[:missing])
                break
            parts.append(block)
            missing -= len(block)
            if not missing:
                break
        return b"".join(parts)

    def some(self, limit: int) -> bytes:
        """At least one byte, at most ``limit``; ``b""`` only at the end. Copies no more than it must."""
        if self._at >= len(self._buffer):
            self._buffer, self._at = next((block for block in self._blocks if block), b""), 0
        data = self._buffer[self._at : self._at + limit]
        self._at += len(data)
        return data

    def skip(self, count: int) -> bool:
        """Pass over ``count`` bytes; False if the end came first."""
        while count:
            passed = len(self.some(count))
            if not passed:
                return False
            count -= passed
        return True


class _Codec:
    """A compressed stream. Archives may hold several in a row; ``padded`` ones allow zero bytes between them."""

    magic: ClassVar[bytes]
    padded: ClassVar[bool] = True
    ended = False

    @property
    def more(self) -> bool:
        """Tell whether output waits although all input was taken: most hand back input that they have no room for."""
        return False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take input; give some output and the input that is left over."""
        raise NotImplementedError

    def too_large(self) -> str:
        """The memory that this stream needs and the limit, where it is above; else ``""``. Asked after an error."""
        return ""


class _Gzip(_Codec):
    magic = _GZIP

    def __init__(self) -> None:
        library = _inflating()
        self._stream, self._error = library.decompressobj(wbits=31), library.error

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            out = self._stream.decompress(data, _BLOCK)
        except self._error as fault:
            raise zlib.error(str(fault)) from fault
        self.ended = self._stream.eof
        return out, self._stream.unused_data if self.ended else self._stream.unconsumed_tail


@cache
def _inflating() -> Any:
    """Import ISA-L's library, which takes half the time of zlib; return zlib where it is not installed."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


class _Xz(_Codec):
    magic = _XZ

    def __init__(self) -> None:
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DICTIONARY_BYTES + _XZ_OWN_BYTES)
        self._head = b""

    @property
    def more(self) -> bool:
        return not self.ended and not self._stream.needs_input

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if len(self._head) < _XZ_HEADERS_BYTES:
            self._head += data[: _XZ_HEADERS_BYTES - len(self._head)]
        out = self._stream.decompress(data, _BLOCK)
        self.ended = self._stream.eof
        return out, self._stream.unused_data if self.ended else b""

    def too_large(self) -> str:
        size = _xz_dictionary(self._head)
        if size <= _DICTIONARY_BYTES:
            return ""
        return _too_large("dictionary", size, _DICTIONARY_BYTES, "xz --lzma2=preset=9,dict=256MiB")


class _Zstd(_Codec):
    magic = b""  # has several; the library looks
    padded = False

    def __init__(self) -> None:
        self._stream = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj()
        self._head = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        # Many small inputs, but few outputs: each one costs the reader a slice.
        parts, size, at = [], 0, 0
        if len(self._head) < _ZSTD_HEADER_BYTES:
            self._head += data[: _ZSTD_HEADER_BYTES - len(self._head)]
        while at < len(data) and size < _BLOCK and not self.ended:
            part = self._stream.decompress(data[at : at + _ZSTD_INPUT])
            at += _ZSTD_INPUT
            size += len(part)
            parts.append(part)
            self.ended = self._stream.eof
        left = self._stream.unused_data if self.ended else b""
        return b"".join(parts), left + data[at:]

    def too_large(self) -> str:
        try:
            size = zstandard.get_frame_parameters(self._head).window_size
        except zstandard.ZstdError:
            return ""
        return _too_large("window", size, _WINDOW_BYTES, "zstd --long=27") if size > _WINDOW_BYTES else ""


def _xz_dictionary(head: bytes) -> int:
    """Bytes of the dictionary that the first block of a stream asks for; 0 if that cannot be read."""
    block = head[12 : 12 + (head[12] + 1) * 4] if len(head) > 12 else b""
    if len(block) < 2:
        return 0
    at = 2
    for _ in range((block[1] >> 6 & 1) + (block[1] >> 7)):  # the sizes, if they are there
        at = _after_number(block, at)
    for _ in range((block[1] & 3) + 1):
        identifier, properties = block[at : at + 1], block[at + 1 : at + 2]
        if identifier == bytes([_LZMA2]) and properties == b"\1":
            bits = int.from_bytes(block[at + 2 : at + 3], "little") & 0x3F
            return min((2 | bits & 1) << (bits // 2 + 11), 0xFFFFFFFF)
        at += 2 + int.from_bytes(properties, "little")
    return 0


def _after_number(data: bytes, at: int) -> int:
    """The place after a number of variable length, whose last byte is below 128."""
    while at < len(data) and data[at] & 0x80:
        at += 1
    return at + 1


def _too_large(what: str, size: int, most: int, option: str) -> str:
    """The words for a stream that is sound, but takes more memory than is allowed (docs/formats.md, sources)."""
    limit = f"at most {most >> 20} MiB are allowed"
    return f"a {what} of {-(-size >> 20)} MiB to be unpacked; {limit}; pack it again with {option} or less"


def _codec_of(first: bytes) -> type[_Codec] | None:
    if first.startswith(_GZIP):
        return _Gzip
    if first.startswith(_XZ):
        return _Xz
    if first.startswith(_ZSTD) or (first[1:4] == _ZSTD_SKIPPABLE and 0x50 <= first[0] <= 0x5F):
        return _Zstd
    return None


def blocks_of(stream: BinaryIO | Iterable[bytes]) -> Iterator[bytes]:
    """The blocks of a binary file, or those that it is."""
    read = getattr(stream, "read", None)
    if read is None:
        return iter(stream)
    return iter(lambda: read(_BLOCK), b"")


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
