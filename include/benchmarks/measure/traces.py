"""Access patterns of applications as traces, and the program that reads them at the near end of a link.

A trace is JSON lines, one a vector read: `{"think_ms": 0, "ranges": [[0, 300]]}`. The program measures the round trip
to an endpoint, and reads by our reader. It is a program of its own as it has to run where the link ends, and measures
its time itself: a job that reads has an interpreter that runs already.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from include.reading.strategies import ReadingStrategy

BASKET, BASKETS, SHARE = 15_000, 60, 17 / 60
"""Bytes of a basket, baskets of a cluster, and the share of them that is read: a real file of 60 branches."""
_SPREAD = 0.6
_BLOCK = 1 << 24
_READ_BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class VectorRead:
    """Ranges that an application asks for together, some time after it had the ones before."""

    ranges: tuple[tuple[int, int], ...]
    think_ms: float = 0

    @property
    def bytes(self) -> int:
        """The bytes that the application gets."""
        return sum(length for _, length in self.ranges)

    @classmethod
    def parse(cls, line: str) -> VectorRead:
        document = json.loads(line)
        return cls(tuple((offset, length) for offset, length in document["ranges"]), document.get("think_ms", 0))

    def format(self) -> str:
        return json.dumps({"think_ms": self.think_ms, "ranges": self.ranges})


def read_trace(path: Path) -> list[VectorRead]:
    """The reads of a trace. Raises OSError, ValueError, KeyError."""
    return [VectorRead.parse(line) for line in path.read_text().splitlines() if line]


def write_trace(path: Path, reads: Iterable[VectorRead]) -> None:
    """Keep a trace. Raises OSError."""
    path.write_text("".join(f"{read.format()}\n" for read in reads))


def make_trace(
    size: int, *, baskets: int = BASKETS, basket_bytes: int = BASKET, share: float = SHARE, seed: int = 0
) -> Iterator[VectorRead]:
    """Reads of some branches of a file of that size: a read a cluster, in which each branch has a basket."""
    draw = random.Random(seed)  # noqa: S311 - the same for every campaign
    branches = set(draw.sample(range(baskets), max(1, round(baskets * share))))
    offset = 0
    while True:
        ranges = []
        for branch in range(baskets):
            length = round(basket_bytes * draw.uniform(1 - _SPREAD, 1 + _SPREAD))
            if branch in branches:
                ranges.append((offset, length))
            offset += length
        if offset > size:
            return
        yield VectorRead(tuple(ranges))


def data_blocks(size: int, seed: int = 0) -> Iterator[bytes]:
    """Random bytes of a file of that size, always the same."""
    draw = random.Random(seed)  # noqa: S311 - the same for every campaign
    for begin in range(0, size, _BLOCK):
        yield draw.randbytes(min(_BLOCK, size - begin))


@cache
def data_sha256(size: int, seed: int = 0) -> str:
    """The SHA-256 of these bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for block in data_blocks(size, seed):
        digest.update(block)
    return digest.hexdigest()


def write_data(path: Path, size: int, seed: int = 0) -> None:
    """Write these bytes into a file. Raises OSError."""
    with path.open("wb") as file:
        for block in data_blocks(size, seed):
            file.write(block)


def _round_trips(host: str, port: int, count: int) -> list[float]:
    """Milliseconds that connections took to open, each of which is a round trip."""
    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])  # names are looked up once
    times = []
    for _ in range(count):
        began = time.monotonic()
        with socket.create_connection((address, port), timeout=10):
            times.append(1000 * (time.monotonic() - began))
    return times


class _Reading:
    """A read whose progress is known before it ends."""

    def __init__(self, strategy: ReadingStrategy, reads: Sequence[VectorRead] | None, *, digests: bool) -> None:
        self.strategy, self._reads = strategy, reads
        self.digest = hashlib.sha256() if digests else None
        self.useful = self.operations = 0
        self.last = time.monotonic()
        """The end of the last operation: bytes of the next one do not count."""
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            if self._reads is None:
                self._read_all()
            else:
                self.strategy.expect([read.ranges for read in self._reads])
                self._read_trace(self._reads)
        except Exception as error:  # noqa: BLE001 - raised by the main thread
            self.failure = error

    def _read_all(self) -> None:
        from include.reading.strategies import SEGMENT

        for offset in range(0, self.strategy.file.size, SEGMENT):
            self.strategy.read_many([(offset, 1)])  # which brings all of the segment, or of the file
            self.operations += 1

    def _read_trace(self, reads: Sequence[VectorRead]) -> None:
        for read in reads:
            if read.think_ms:
                time.sleep(read.think_ms / 1000)
            parts = self.strategy.read_many(read.ranges)
            if self.digest:
                self.digest.update(b"".join(parts))
            self.useful += sum(map(len, parts))
            self.operations += 1
            self.last = time.monotonic()


def _read(
    url: str, strategy: str, streams: int, seconds: float, trace: str | None, size: int, sha256: str,
    digests: bool = False,
) -> dict[str, object]:  # fmt: skip
    """Read by a strategy: all of the file, or where there is a trace what it says (empty: one is made for the size).

    ``sha256``: of the file, or where ``digests`` is set of all that the trace reads.
    """
    from include.reading.source import DistantFile, ReplicaAddress
    from include.reading.strategies import ApplicationReads, LazyDownload, StorageReads, WholeFile

    strategies: dict[str, Callable[[DistantFile], ReadingStrategy]] = {
        "storage": StorageReads,
        "application": ApplicationReads,
        "lazy": lambda file: LazyDownload(file, folder=Path(tempfile.gettempdir()), streams=streams),
        "whole": lambda file: WholeFile(file, folder=Path(tempfile.gettempdir())),
    }
    # the trace is known before: it is the application's
    reads = None if trace is None else read_trace(Path(trace)) if trace else list(make_trace(size))
    before, began = _cpu_s(), time.monotonic()
    file = DistantFile(url, [ReplicaAddress("endpoint", url)])
    reading = _Reading(strategies[strategy](file), reads, digests=digests)
    thread = threading.Thread(target=reading.run, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds - (time.monotonic() - began)))
    ended, received = not thread.is_alive(), min(file.counts.received, file.size)
    end = time.monotonic() if ended or reads is None else reading.last
    figures = {
        "seconds": end - began, "ended": ended, "cpu_s": _cpu_s() - before,
        "bytes": received if reads is None else reading.useful, "operations": reading.operations,
        "requests": file.counts.requests, "failures": file.counts.failures, "right": True,
    }  # fmt: skip
    if reading.failure is not None:
        raise reading.failure
    if reading.digest:
        figures["right"] = reading.digest.hexdigest() == sha256
    if reads is None and ended:
        digest = hashlib.sha256()
        for offset in range(0, file.size, _READ_BLOCK):
            digest.update(reading.strategy.read_many([(offset, min(_READ_BLOCK, file.size - offset))])[0])
        figures["right"] = digest.hexdigest() == sha256
    return figures


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(json.dumps((_round_trips if sys.argv[1] == "rtt" else _read)(**json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # a read whose time is over is not waited for
