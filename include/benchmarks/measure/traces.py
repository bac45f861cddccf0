"""Access patterns of applications as traces: JSON lines, one a vector read, `{"think_ms": 0, "ranges": [[0, 300]]}`."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BASKET, BASKETS, SHARE = 15_000, 60, 17 / 60
"""Bytes of a basket, baskets of a cluster, and the share of them that is read: a real file of 60 branches."""
_SPREAD = 0.6
_BLOCK = 1 << 24


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
