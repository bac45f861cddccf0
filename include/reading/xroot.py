"""A replica of a file at an XRootD server, by the Python package `xrootd` (the extra `xroot`): single attempts.

The package's own recovery is off: after a cut it opens a file again without looking whether that is another one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import accumulate, islice
from math import ceil
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from include.reading.errors import FailureKind, ReplicaFailure
from include.reading.ranges import Range, RangeBuffers
from include.reading.replica import DistantReplica, ReadingCounts, adler32_of

MISSING = "the package xrootd is not installed here (pip install 'nightshift[xroot]')"
_MOST_CHUNKS, _CHUNK = 1024, 2_097_136
"""Bounds of a vector read, as servers have them by default (readv_iov_max, readv_ior_max)."""
_BLOCK, _AT_ONCE = 256 << 10, 32
"""A stream is so many reads of so many bytes that are under way together: what a cut loses is less than a block."""
_WINDOW = _BLOCK * _AT_ONCE
_SLOWEST = 200_000
"""Bytes a second by which the time limit of a request is longer while others are under way: they share a connection."""
_READ, _CHECKSUM = 16, 3
"""Numbers of the protocol: kXR_open_read, kXR_Qcksum."""
_ENVIRONMENT: Mapping[str, int] = {
    "TimeoutResolution": 1,  # s; by default limits are looked after every 15 s
    "ConnectionRetry": 1, "ConnectionWindow": 30,  # one attempt, of s
    "StreamErrorWindow": 0,  # s in which a server that failed is not asked again
    "StreamTimeout": 30,  # s without a byte, after which the next request has a new connection
    "RequestTimeout": 30,  # s, of files that are closed when the process ends
    "RedirectLimit": 5,
}  # fmt: skip
_SERVER_ERROR = 400
_OF_SERVER: Mapping[int, FailureKind] = {
    3004: FailureKind.CUT, 3011: FailureKind.MISSING, 3029: FailureKind.MISSING,
    **dict.fromkeys((3010, 3030), FailureKind.REFUSED),
    **dict.fromkeys((3003, 3005, 3007, 3008, 3012, 3014, 3017, 3020, 3024, 3033, 3034, 3035), FailureKind.BUSY),
}  # fmt: skip
"""Errors of servers (kXR_*, XProtocol.hh); others are WRONG, as those of the client are."""
_OF_CLIENT: Mapping[int, tuple[FailureKind, str]] = {
    **dict.fromkeys((101, 108), (FailureKind.UNREACHABLE, "cannot connect")),
    **dict.fromkeys((103, 206), (FailureKind.SILENT, "no byte came in time")),
    **dict.fromkeys((3, 102, 104, 105, 107, 109, 207), (FailureKind.CUT, "the connection ended")),
    110: (FailureKind.DISTRUSTED, "TLS failed"),
    **dict.fromkeys((203, 204), (FailureKind.REFUSED, "it refuses the credential")),
    304: (FailureKind.MISSING, "it has no such file"),
}
"""Errors of the client (XrdClStatus.hh). Error 3: another request failed before, and the file was closed."""
_CLOSED = SimpleNamespace(ok=False, code=104, errno=0)


class XrootReplica(DistantReplica):
    """A file at a URL of the scheme root or xroot, with the credential that XRootD's client has in the environment."""

    def __init__(self, url: str, site: str, *, timeout_s: float, counts: ReadingCounts) -> None:
        super().__init__(url, site, timeout_s=timeout_s, counts=counts)
        self._file: Any = None
        self._modified: int | None = None
        self._under_way = 0
        self._lock, self._tally = threading.Lock(), threading.Lock()

    def open(self) -> int:
        self.close()
        with self._opened() as file:
            size: int = self._answer(self._later(file.stat, False)).size  # came with the reply to open
        self.digest = self._adler32()
        return size

    def stream(self, offset: int, length: int) -> Iterator[bytes]:
        with self._opened() as file:
            facts = self._later(file.stat, True)
            chunks = _chunks([(offset, length)], _BLOCK)
            asked = ((chunk, self._read(file.read, *chunk, size=chunk[1])) for chunk in chunks)
            coming = deque(islice(asked, _AT_ONCE))
            self._require_same(self._answer(facts))
            while coming:
                chunk, answer = coming.popleft()
                block = self._whole(chunk, self._answer(answer))
                coming.extend(islice(asked, 1))
                yield block

    def fill(self, buffers: RangeBuffers, ranges: Sequence[Range]) -> None:
        if len(ranges) == 1:
            self.fill_one(buffers, ranges[0])
            return
        chunks = list(islice(_chunks(ranges, _CHUNK), _MOST_CHUNKS))
        ends = accumulate(length for _, length in chunks)
        chunks = [chunk for chunk, end in zip(chunks, ends, strict=True) if end <= _WINDOW]
        with self._opened() as file:
            facts = self._later(file.stat, True)
            answer = self._read(file.vector_read, chunks, size=sum(length for _, length in chunks))
            self._require_same(self._answer(facts))
            for chunk, part in zip(chunks, self._answer(answer).chunks, strict=True):
                buffers.put(chunk[0], self._whole(chunk, part.buffer))

    def close(self) -> None:
        with self._lock:
            self._leave()

    # -- one file

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """The open file; after a failure the next request opens it again."""
        with self._lock:
            if self._file is None:
                file = _client().File()
                file.set_property("ReadRecovery", "false")
                self._answer(self._read(file.open, self._url, _READ))
                self._require_same(self._answer(self._later(file.stat, False)))
                self._file = file
            file = self._file
        try:
            yield file
        except ReplicaFailure:
            with self._lock:
                if self._file is file:
                    self._leave()
            raise

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._later(file.close)  # without waiting: the server may be silent

    def _require_same(self, facts: Any) -> None:
        """Refuse another file than the one that was opened first."""
        if self.size not in (None, facts.size):
            raise ReplicaFailure(FailureKind.CHANGED, f"it has {facts.size} bytes, and had {self.size}")
        replaced = self._modified not in (None, facts.modtime)
        if replaced and not (self.digest and self._adler32() == self.digest):
            raise ReplicaFailure(FailureKind.CHANGED, "the file was replaced")
        self.size, self._modified = facts.size, facts.modtime

    def _whole(self, chunk: Range, data: bytes) -> bytes:
        if len(data) != chunk[1]:
            raise ReplicaFailure(FailureKind.CHANGED, "it has fewer bytes than before")
        self._counts.received += len(data)
        return data

    def _adler32(self) -> str | None:
        """The checksum that the server reports; None: it reports none, or not in time."""
        parts = urlsplit(self._url)
        server = _client().FileSystem(f"root://{parts.netloc}")
        path = f"/{parts.path.strip('/')}?cks.type=adler32" + (f"&{parts.query}" if parts.query else "")
        try:
            reply = self._answer(self._read(server.query, _CHECKSUM, path))
        except ReplicaFailure as failure:
            if failure.kind in (FailureKind.CUT, FailureKind.UNREACHABLE):
                raise
            return None
        return adler32_of(bytes(reply or b"").decode("latin-1").strip("\0\n ").replace(" ", "=", 1))

    # -- one request

    def _read(self, call: Callable[..., Any], *arguments: Any, size: int = 0) -> Future[Any]:
        self._counts.requests += 1
        return self._later(call, *arguments, size=size)

    def _later(self, call: Callable[..., Any], *arguments: Any, size: int = 0) -> Future[Any]:
        """Send a request for so many bytes; its status and reply come later."""
        answer: Future[Any] = Future()

        def came(status: Any, reply: Any, _: object = None) -> None:
            with self._tally:
                self._under_way -= size
            answer.set_result((status, reply))

        with self._tally:
            self._under_way += size
            limit_s = ceil(self._timeout_s + self._under_way / _SLOWEST)
        try:
            status = call(*arguments, timeout=limit_s, callback=came)
        except ValueError:  # another thread has closed the file
            status = _CLOSED
        if not status.ok:
            came(status, None)
        return answer

    def _answer(self, answer: Future[Any]) -> Any:
        began = time.monotonic()
        status, reply = answer.result()
        self._counts.waited_s += time.monotonic() - began
        if not status.ok:
            raise _failure(status.code, status.errno)
        return reply


@cache
def _client() -> Any:
    """The package, which repeats nothing by itself then; a variable of the environment, as XRD_REDIRECTLIMIT, wins."""
    try:
        client = import_module("XRootD.client")
    except ImportError as error:
        raise ReplicaFailure(FailureKind.WRONG, MISSING) from error
    for name, value in _ENVIRONMENT.items():
        client.EnvPutInt(name, value)
    return client


def _failure(code: int, number: int) -> ReplicaFailure:
    """The failure without the server's text."""
    if code == _SERVER_ERROR:
        return ReplicaFailure(_OF_SERVER.get(number, FailureKind.WRONG), f"XRootD error {number}")
    kind, why = _OF_CLIENT.get(code, (FailureKind.WRONG, f"error {code} of XRootD's client"))
    return ReplicaFailure(kind, why)


def _chunks(ranges: Sequence[Range], most: int) -> Iterator[Range]:
    for offset, length in ranges:
        for begin in range(offset, offset + length, most):
            yield begin, min(most, offset + length - begin)
