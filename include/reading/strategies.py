"""Ways in which a job's reads become requests (docs/federation.md), and a file object over one of them."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from include.reading.errors import NO_SHADOW
from include.reading.ranges import Range
from include.reading.source import DistantFile

SEGMENT = 128 << 20
AHEAD = 8
STREAMS = 4
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ReadingStrategy(ABC):
    """Use it as a context. Each call is the read of a cluster: the ranges that an application asks for together."""

    def __init__(self, file: DistantFile, *, say: Callable[[str], object] = lambda _: None) -> None:
        self.file, self._say = file, say

    @abstractmethod
    def read_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of each range. Raises ReadingError."""

    def expect(self, clusters: Iterable[Sequence[Range]]) -> None:  # noqa: B027 - most have no use for it
        """Note what will be asked for next, in this order; a strategy may read it with other things."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds."""

    def __enter__(self) -> ReadingStrategy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StorageReads(ReadingStrategy):
    """A request for each range, as a storage plugin without vector reads makes them."""

    def read_many(self, ranges: Sequence[Range]) -> list[bytes]:
        return [self.file.read(offset, length) for offset, length in ranges]


class ApplicationReads(ReadingStrategy):
    """A request for each cluster, or for several of them where the application says what comes next."""

    def __init__(self, file: DistantFile, *, ahead: int = AHEAD, say: Callable[[str], object] = lambda _: None) -> None:
        super().__init__(file, say=say)
        self._ahead = ahead
        self._coming: deque[tuple[Range, ...]] = deque()
        self._kept: dict[Range, bytes] = {}

    def expect(self, clusters: Iterable[Sequence[Range]]) -> None:
        self._coming = deque(map(tuple, clusters))
        self._kept.clear()

    def read_many(self, ranges: Sequence[Range]) -> list[bytes]:
        if any(asked not in self._kept for asked in ranges):
            group = list(ranges)
            if self._coming and self._coming[0] == tuple(ranges):
                group = [asked for cluster in list(self._coming)[: self._ahead] for asked in cluster]
            self._kept = dict(zip(group, self.file.read_many(group), strict=True))
        if self._coming and self._coming[0] == tuple(ranges):
            self._coming.popleft()
        return [self._kept[asked] for asked in ranges]

    def close(self) -> None:
        self._kept.clear()


class LazyDownload(ReadingStrategy):
    """Segments of the file go into a sparse shadow file when they are first asked for, by several requests at once.

    Where the local disk has no room, it says so, and reads as ``ApplicationReads`` from then on.
    """

    def __init__(
        self,
        file: DistantFile,
        *,
        folder: Path | None = None,
        segment: int = SEGMENT,
        streams: int = STREAMS,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        super().__init__(file, say=say)
        self._segment, self._streams = segment, streams
        self._have: set[int] = set()
        self._direct: ApplicationReads | None = None
        try:
            self._shadow = tempfile.TemporaryFile(prefix="nightshift-", dir=folder)  # noqa: SIM115 - closed by close()
        except OSError as fault:
            raise NO_SHADOW(file.name, f"no shadow file can be made in {folder or tempfile.gettempdir()}") from fault
        self._shadow.truncate(file.size)

    def read_many(self, ranges: Sequence[Range]) -> list[bytes]:
        if self._direct is None:
            try:
                for offset, length in ranges:
                    for number in range(offset // self._segment, -(-(offset + length) // self._segment)):
                        self._fetch(number)
            except OSError as fault:
                if fault.errno not in _FULL:
                    raise
                self._say(f"{self.file.name}: the disk of the shadow file is full; it is read directly from now on")
                self._direct = ApplicationReads(self.file)
        if self._direct is not None:
            return self._direct.read_many(ranges)
        return [os.pread(self._shadow.fileno(), length, offset) for offset, length in ranges]

    def close(self) -> None:
        self._shadow.close()

    def _fetch(self, number: int) -> None:
        if number not in self._have:
            begin = number * self._segment
            length = min(self._segment, self.file.size - begin)
            self.file.read_into(self._shadow.fileno(), begin, length, self._streams)
            self._have.add(number)


class WholeFile(LazyDownload):
    """All of the file is read at the first read, by one request."""

    def __init__(
        self, file: DistantFile, *, folder: Path | None = None, say: Callable[[str], object] = lambda _: None
    ) -> None:
        super().__init__(file, folder=folder, segment=max(1, file.size), streams=1, say=say)


class ReadableFile(io.RawIOBase):
    """A distant file as a file object of Python; ``readv`` reads several ranges together.

    It closes the strategy and its file.
    """

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
            self._strategy.file.close()
        super().close()
