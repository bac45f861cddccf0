"""Small objects by number: what is in them, what they are called, and how they get into a store quickly."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from bench.publishing.places import Place
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress

_AT_A_TIME = 2000
ORPHANS, FLOOR = 1 << 40, 1 << 41  # numbers that no tree uses
_THREE_DAYS_S = 3 * 86_400


def content(number: int) -> bytes:
    """Of the file with that number: a few dozen bytes of its own."""
    return f"file {number:016x} of the benchmark of collections {number * 2654435761 % 2**32:08x}\n".encode()


def packed(number: int) -> tuple[ObjectHash, bytes]:
    """The object of a file, and its name."""
    data = compress(content(number))
    return hash_bytes(data, Algorithm.SHA1), data


def keys(numbers: Iterable[int]) -> Iterator[str]:
    return (packed(number)[0].key for number in numbers)


def put(place: Place, numbers: Iterable[int], *, aged: bool = False) -> float:
    """Store objects with as many threads as there are connections; seconds. ``aged``: as if three days ago (files)."""
    store, started = place.open(), time.monotonic()
    root, then = place.url.removeprefix("file://"), time.time() - _THREE_DAYS_S

    def put_one(number: int) -> None:
        name, data = packed(number)
        store.put(name.key, data)
        if aged:
            os.utime(f"{root}/{name.key}", (then, then))

    with ThreadPoolExecutor(place.connections) as pool:
        rest = iter(numbers)
        while part := list(islice(rest, _AT_A_TIME)):
            list(pool.map(put_one, part))
    return time.monotonic() - started
