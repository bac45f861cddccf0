"""A file that may be read from several sites: repetition, resumption, fail-over.

Attempts are counted from the last progress, not for the file: a long file on a bad link is read to its end. The next
replica is tried where one cannot be read any more; two contents are never mixed.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TypeVar

from include.reading.errors import FILE_CHANGED, NO_REPLICA, OUTSIDE, FailureKind, ReadingError, ReplicaFailure
from include.reading.ranges import JOIN_GAP, MOST_RANGES, Range, RangeBuffers, RangesInFile, joined, packed
from include.reading.replica import DistantReplica, HttpReplica, ReadingCounts, Token
from include.reading.xroot import MISSING, XrootReplica

_log = logging.getLogger(__name__)
B = TypeVar("B", bound=RangeBuffers)
_HTTP = {"http": "http", "dav": "http", "https": "https", "davs": "https"}
_XROOT = frozenset({"root", "xroot"})


@dataclass(frozen=True, slots=True)
class Patience:
    """Rules for failures: ``retries`` without progress; ``wait_s`` before the first, doubled for each up to
    ``longest_s``; ``timeout_s`` for a connection, and between two bytes."""

    retries: int = 5
    wait_s: float = 0.5
    longest_s: float = 30.0
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """A replica: its site and URL, and the rules of the site."""

    site: str
    url: str
    patience: Patience = Patience()


Tell = Callable[[str], object]


def unreadable(url: str) -> str | None:
    """Return the reason why this installation cannot read a URL; None: it can."""
    scheme = url.partition("://")[0].lower()
    if scheme in _XROOT:
        return None if find_spec("XRootD") else MISSING
    return None if scheme in _HTTP else "nothing here reads URLs of its scheme"


class DistantFile:
    """A file with its replicas, in the order in which they are tried. Use it as a context.

    Args:
        name: Its name for messages.
        replicas: Where it is.
        size: Bytes that it has, where that is known before.
        adler32: Its checksum, where that is known: replicas with another one are not read.
        token: Gives the bearer token of now.
        say: Called with what went wrong and was mended, for a log.

    Raises:
        ReadingError: NO_REPLICA with the reason of each, FILE_CHANGED or OUTSIDE; so do its methods.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[ReplicaAddress],
        *,
        size: int | None = None,
        adler32: str | None = None,
        token: Token = lambda: None,
        say: Tell = lambda _: None,
    ) -> None:
        self.name, self.counts = name, ReadingCounts()
        self._expected, self._digest, self._say = size, adler32 and adler32.lower().zfill(8), say
        self._reasons = [f"{place.site}: {reason}" for place in replicas if (reason := unreadable(place.url))]
        self._left = [(self._at(place, token), place.patience) for place in replicas if not unreadable(place.url)]
        for reason in self._reasons:
            say(f"{name}: {reason}")
        self._given = self._closed = False
        self._shown = True  # the replica that is read now reports the checksum of the file
        self._same = True  # so do those before it: what came of them counts
        self._lock = threading.Lock()
        self._failed = True  # until it is open
        self.size = 0
        try:
            self.size = self._open()
        except ReadingError:
            self.close()
            raise
        self._failed = False

    def __enter__(self) -> DistantFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections, and leave one line about the reading in the log; again, it does nothing.

        The line counts for the health of sites (docs/federation.md).
        """
        if self._closed:
            return
        self._closed = True
        for replica, _ in self._left:
            replica.close()
        line = {"file": self.name, "size": self.size, "failed": self._failed, **asdict(self.counts)}
        _log.info("read %s", json.dumps(line | {"waited_s": round(self.counts.waited_s, 3)}))

    # -- reading

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file, in one request where nothing fails; fewer only at its end."""
        length = max(0, min(length, self.size - offset))
        return self.read_many([(offset, length)])[0] if length else b""

    def read_many(self, ranges: Sequence[Range], *, gap: int = JOIN_GAP) -> list[bytes]:
        """The bytes of all ranges, with as few requests as the server allows; what is near is read with it."""
        for offset, length in ranges:
            if offset < 0 or length < 0 or offset + length > self.size:
                raise OUTSIDE(self.name, f"{length} bytes at {offset} were asked for; it has {self.size}")
        near = joined(ranges, gap)
        buffers = self._filled(lambda: RangeBuffers(near))
        return [buffers.take(asked) for asked in ranges]

    def read_into(self, descriptor: int, offset: int, length: int, streams: int = 1) -> None:
        """Read bytes into the same place of a local file, by several requests at once. Raises OSError too."""
        share = max(1, -(-length // streams))
        parts = [(begin, min(share, offset + length - begin)) for begin in range(offset, offset + length, share)]
        with ThreadPoolExecutor(streams, "reading") as pool:
            for _ in pool.map(lambda part: self._filled(lambda: RangesInFile([part], descriptor)), parts):
                pass

    def _filled(self, fresh: Callable[[], B]) -> B:
        buffers, trouble, most, replica = fresh(), _Trouble(self), MOST_RANGES, self._replica
        while not self._complete(buffers, replica):
            current = self._replica
            if current is not replica and not self._same:
                buffers = fresh()
            replica = current
            try:
                replica.fill(buffers, next(packed(buffers.missing(), most)))
            except ReplicaFailure as failure:
                if failure.kind is FailureKind.CUT:
                    most = max(1, most // 2)  # a server that ends a long reply early may end a shorter one well
                trouble.mend(replica, failure)
        return buffers

    def _complete(self, buffers: RangeBuffers, replica: DistantReplica) -> bool:
        """Tell whether all has come, and from a replica that counts: others may have gone on to another meanwhile."""
        if buffers.missing():
            return False
        with self._lock:
            self._require_left()
            self._given = self._given or self._same or self._left[0][0] is replica
            return self._same or self._left[0][0] is replica

    def stream(self, offset: int = 0) -> Iterator[bytes]:
        """All bytes from an offset on, as they arrive."""
        trouble = _Trouble(self)
        while offset < self.size:
            replica = self._replica
            try:
                for block in replica.stream(offset, self.size - offset):
                    offset += len(block)
                    self._given = True
                    yield block
            except ReplicaFailure as failure:
                trouble.mend(replica, failure)

    # -- replicas

    @property
    def _replica(self) -> DistantReplica:
        with self._lock:
            self._require_left()
            return self._left[0][0]

    def _require_left(self) -> None:
        if not self._left:
            self._failed = True
            raise NO_REPLICA(self.name, "; ".join(self._reasons) or "it has no replica")

    def _open(self) -> int:
        trouble = _Trouble(self)
        while True:
            replica = self._replica
            try:
                return self._opened(replica)
            except ReplicaFailure as failure:
                trouble.mend(replica, failure)
                if self._expected is not None and self._replica is not replica:
                    return self._expected  # it was opened when it took over

    def _at(self, place: ReplicaAddress, token: Token) -> DistantReplica:
        scheme, _, rest = place.url.partition("://")
        timeout_s, plain = place.patience.timeout_s, _HTTP.get(scheme.lower())
        if plain is None:
            return XrootReplica(place.url, place.site, timeout_s=timeout_s, counts=self.counts)
        return HttpReplica(f"{plain}://{rest}", place.site, timeout_s=timeout_s, counts=self.counts, token=token)

    def _opened(self, replica: DistantReplica) -> int:
        size = replica.open()
        if self._expected not in (None, size):
            raise ReplicaFailure(FailureKind.WRONG, f"it has {size} bytes there, not {self._expected}")
        if self._digest and replica.digest and replica.digest != self._digest:
            raise ReplicaFailure(FailureKind.WRONG, f"its checksum there is {replica.digest}, not {self._digest}")
        self._same = bool(replica.digest) and self._shown
        if self._given and not self._same:
            # bytes of another site were given before
            raise ReplicaFailure(FailureKind.WRONG, "nothing shows that it is the same file there")
        self._shown = bool(replica.digest)
        self._expected, self._digest = size, self._digest or replica.digest
        if replica.site not in self.counts.sites:
            self.counts.sites.append(replica.site)
        return size

    def failed(self, replica: DistantReplica, failure: ReplicaFailure, without_progress: int) -> None:
        """Wait before the next attempt, or go on to the next replica. Raises ReadingError."""
        with self._lock:
            self._count(replica, failure)
            self._require_left()
            current, patience = self._left[0]
            if current is not replica:
                return  # another request of the same file went on before
            if failure.kind is FailureKind.CHANGED and self._expected is not None:
                self._failed = True
                raise FILE_CHANGED(self.name, f"at {replica.site} {failure.why}")
            if not failure.kind.may_pass or without_progress > patience.retries:
                self._next(failure)
                return
            self.counts.retries += 1
        if without_progress or failure.wait_s is not None:
            pause = min(patience.longest_s, patience.wait_s * 2 ** max(0, without_progress - 1))
            pause = failure.wait_s if failure.wait_s is not None else pause * random.uniform(0.5, 1)  # noqa: S311 - jitter
            self._say(f"{self.name}: {replica.site}: {failure.why}; read again in {pause:.1f} s")
            self.counts.waited_s += pause
            time.sleep(pause)

    def _count(self, replica: DistantReplica, failure: ReplicaFailure) -> None:
        key = f"{replica.site} {failure.kind.value}"
        self.counts.failures[key] = self.counts.failures.get(key, 0) + 1

    def _next(self, failure: ReplicaFailure) -> None:
        while True:
            replica, _ = self._left.pop(0)
            replica.close()
            self._reasons.append(f"{replica.site}: {failure.why}")
            self._say(f"{self.name}: {replica.site}: {failure.why}; it is not read there any more")
            self._require_left()
            other, patience = self._left[0]
            for attempt in range(patience.retries + 1):
                try:
                    self._opened(other)
                except ReplicaFailure as refusal:
                    failure = refusal
                    self._count(other, failure)
                    if not failure.kind.may_pass or attempt == patience.retries:
                        break
                    pause = min(patience.longest_s, patience.wait_s * 2**attempt)
                    self.counts.retries += 1
                    self.counts.waited_s += pause
                    time.sleep(pause)
                else:
                    return


class _Trouble:
    """Attempts of one piece of work, counted from the last progress."""

    def __init__(self, file: DistantFile) -> None:
        self._file, self._received, self._failures = file, file.counts.received, 0

    def mend(self, replica: DistantReplica, failure: ReplicaFailure) -> None:
        """See that the work can go on. Raises ReadingError."""
        received = self._file.counts.received
        self._failures = 0 if received > self._received else self._failures + 1
        self._received = received
        self._file.failed(replica, failure, self._failures)
