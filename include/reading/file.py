"""A distant file as a file object of Python, which fsspec and uproot take."""

from __future__ import annotations

import io
from collections.abc import Sequence

from include.reading.ranges import Range
from include.reading.strategies import ReadingStrategy


class ReadableFile(io.RawIOBase):
    """Reads by a strategy; ``readv`` reads several ranges together. It closes the strategy."""

    def __init__(self, strategy: ReadingStrategy) -> None:
        super().__init__()
        self._strategy, self._at = strategy, 0
        self.size = strategy.file.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise ValueError(f"seek to {at}")
        self._at = at
        return at

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]
        length = max(0, min(len(buffer), self.size - self._at))
        if length:
            (data,) = self._strategy.read_many([(self._at, length)])
            buffer[:length] = data
            self._at += length
        return length

    def readv(self, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of each (offset, length)."""
        return self._strategy.read_many(ranges)

    def close(self) -> None:
        if not self.closed:
            self._strategy.close()
        super().close()
