"""A look at every object of a cache: 37 bytes an object, four folders at once, nothing read but the states of files."""

from __future__ import annotations

import os
import stat
import time
from array import array
from bisect import bisect
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from include.aliencache.cache import AlienCache
from include.aliencache.errors import refused
from include.aliencache.names import OBJECT_NAME, SHARDS, TXN, NameKind, kind_in_shard
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.settings.caches import UseOfObjects

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 4
"""Folders at once, where the file system lets the first one wait."""
_WAITS, _WAITS_S = 2.0, 0.005  # it waited: more than so many times its processor time, and these seconds
LATEST = 0xFFFFFFFF
"""The latest time that a place of an array has, in the year 2106."""
MINUTE_S = 60
_REST_BYTES = 19
_ALGORITHMS = {algorithm.value: number for number, algorithm in enumerate(Algorithm)}
_VALUES = tuple(Algorithm)
_BLOCK = 512  # of st_blocks
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Shard:
    """The objects of a folder, by place: rest of the digest, Unix s of the last use, bytes that they take on the disk.

    `times` 0: too young to go. `temporary`: names of temporary files with their mtimes.
    """

    number: int
    rests: bytearray = field(default_factory=bytearray)
    algorithms: bytearray = field(default_factory=bytearray)
    times: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    temporary: list[tuple[str, float]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unreadable: int = 0
    young: int = 0

    def __len__(self) -> int:
        return len(self.times)

    def add_other(self, name: str, status: os.stat_result) -> None:
        """Take what is no object."""
        if stat.S_ISREG(status.st_mode) and kind_in_shard(name) is NameKind.TEMPORARY:
            self.temporary.append((name, status.st_mtime))
        else:
            self.foreign.append(name)

    def digest(self, place: int) -> bytes:
        """The whole digest of an object."""
        return bytes((self.number,)) + self.rests[place * _REST_BYTES : (place + 1) * _REST_BYTES]

    def file_name(self, place: int) -> str:
        """The name of an object's file."""
        rest = self.rests[place * _REST_BYTES : (place + 1) * _REST_BYTES].hex()
        return rest + _VALUES[self.algorithms[place]].value

    def name(self, place: int) -> ObjectHash:
        """The object."""
        return ObjectHash(self.digest(place), _VALUES[self.algorithms[place]])


def use_of(status: os.stat_result, use: UseOfObjects) -> int:
    """Unix s of the last use of an object, as its file tells it."""
    if use is UseOfObjects.RECORD or use is UseOfObjects.AGE:
        return int(status.st_mtime)
    return int(max(status.st_atime, status.st_mtime))


def open_shard(cache: AlienCache, shard: str) -> int:
    """A descriptor of a folder of the cache; a link is not followed. Raises FileNotFoundError, CacheError."""
    try:
        return os.open(cache.path / shard, _FOLDER)
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise refused(cache.path, fault) from fault


def scan_shard(cache: AlienCache, number: int, use: UseOfObjects, *, young_after: float) -> Shard:
    """Look at a folder of objects. Objects that came after `young_after` (Unix s) count as young. Raises CacheError."""
    result = Shard(number)
    try:
        descriptor = open_shard(cache, SHARDS[number])
    except FileNotFoundError:
        return result
    try:
        with os.scandir(descriptor) as entries:
            rests, times, sizes, is_object = result.rests, result.times, result.sizes, OBJECT_NAME.fullmatch
            is_readable, is_regular = cache.is_readable, stat.S_ISREG
            for entry in entries:
                match = is_object(entry.name)
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another one took it away
                if match is None or not is_regular(status.st_mode):
                    result.add_other(entry.name, status)
                    continue
                rests += bytes.fromhex(match[1])
                result.algorithms.append(_ALGORITHMS[match[2] or ""])
                sizes.append(status.st_blocks * _BLOCK)
                if status.st_mtime > young_after:
                    times.append(0)
                    result.young += 1
                else:
                    times.append(max(1, min(use_of(status, use), LATEST)))
                if not is_readable(status):
                    result.unreadable += 1
    except OSError as fault:
        raise refused(cache.path, fault) from fault
    finally:
        os.close(descriptor)
    return result


def scan(cache: AlienCache, use: UseOfObjects, *, young_after: float) -> list[Shard]:
    """Look at all folders of objects."""
    return in_threads(lambda number: scan_shard(cache, number, use, young_after=young_after), range(256))


def in_threads(work: Callable[[T], R], items: Iterable[T], *, computes: bool = False) -> list[R]:
    """The results of a work on some folders, in their order; the first error ends all.

    Several at once only where the first one waited for the file system: threads that do not wait hinder each other,
    unless the work `computes` outside of the interpreter, as a hash does.
    """
    pending = list(items)
    results: list[R] = []
    if pending and not computes:
        began, used = time.monotonic(), time.thread_time()
        results.append(work(pending.pop(0)))
        waits = time.monotonic() - began > _WAITS * (time.thread_time() - used) + _WAITS_S
        if not waits:
            return results + [work(item) for item in pending]
    with ThreadPoolExecutor(AT_ONCE, "cache") as pool:
        return results + list(pool.map(work, pending))


def temporary_in_txn(cache: AlienCache) -> list[tuple[str, float]]:
    """Names of the temporary files of clients, with their mtimes."""
    result = []
    try:
        with os.scandir(cache.path / TXN) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    result.append((entry.name, status.st_mtime))
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise refused(cache.path, fault) from fault
    return result


DAYS = (0.25, 1, 3, 7, 14, 30, 90, 365)
"""Upper ends of the bars of an age histogram, in days; one more has all that is older."""


def by_minute(shards: list[Shard], pins: Container[bytes] = ()) -> tuple[dict[int, int], dict[int, int]]:
    """Objects and their bytes by the minute (Unix time) of the last use, without pinned ones; -1: too young to go."""
    counts, sizes = dict[int, int](), dict[int, int]()
    has_pins = bool(pins)
    for shard in shards:
        for place, used in enumerate(shard.times):
            if has_pins and shard.digest(place) in pins:
                continue
            minute = used // MINUTE_S if used else -1
            if minute in counts:
                counts[minute] += 1
                sizes[minute] += shard.sizes[place]
            else:
                counts[minute], sizes[minute] = 1, shard.sizes[place]
    return counts, sizes


def ages(shards: list[Shard], now: float) -> list[tuple[int, int]]:
    """Objects and bytes by the time since their last use, in the bars of :data:`DAYS`."""
    begins = [now - days * 86400 for days in reversed(DAYS)]  # of all bars but the oldest, that of a bar's oldest use
    counts, sizes = [0] * (len(DAYS) + 1), [0] * (len(DAYS) + 1)
    objects, taken = by_minute(shards)
    for minute, count in objects.items():
        bar = len(DAYS) - bisect(begins, now if minute < 0 else minute * MINUTE_S)
        counts[bar] += count
        sizes[bar] += taken[minute]
    return list(zip(counts, sizes, strict=True))
