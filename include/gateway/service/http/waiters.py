"""Who waits for a busy path, in the order of arrival: reported to callers that are refused, and to those that ask.

A publisher counts as waiting while he comes again within a minute. Nothing is reserved: the place is a hint by which
those who came first come again first.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from include.cvmfs.format.paths import path_and_above
from include.gateway.protocol import LeasePath

PATIENCE_S = 60.0
_LONGEST_LIST = 10_000


@dataclass(frozen=True, slots=True)
class Waiter:
    """``since_s`` and ``seen_s``: monotonic, of the first and the last refusal."""

    path: LeasePath
    key_id: str
    hostname: str
    since_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """``position``: 1 for who came first; ``waiting``: how many wait for an overlapping path; times in seconds."""

    waiter: Waiter
    position: int
    waiting: int
    expected_s: float
    waited_s: float


class WaitingList:
    """Safe to use from several threads. ``now_s``: a monotonic clock."""

    def __init__(
        self, now_s: Callable[[], float], longest_s: float, mean_held_s: Callable[[str], float | None]
    ) -> None:
        """``mean_held_s``: how long leases of a repository are held, None if that is not known yet."""
        self._now_s = now_s
        self._longest_s = longest_s
        self._mean_held_s = mean_held_s
        self._waiters: dict[tuple[LeasePath, str, str], Waiter] = {}  # those who were seen last come last
        self._index = _Index()
        self._lock = threading.Lock()

    def refused(self, path: LeasePath, key_id: str, hostname: str, remaining_s: float) -> QueuePlace:
        """Record a caller that found the path busy for at most ``remaining_s``; its place among those who wait."""
        with self._lock:
            self._forget()
            now = self._now_s()
            known = self._waiters.pop((path, key_id, hostname), None)
            waiter = Waiter(path, key_id, hostname, known.since_s if known else now, now)
            if known or len(self._waiters) < _LONGEST_LIST:
                self._waiters[path, key_id, hostname] = waiter
                if known is None:
                    self._index.add(waiter)
            return self._place(waiter, remaining_s, self._index.overlapping(path))

    def granted(self, path: LeasePath, key_id: str, hostname: str) -> None:
        """Forget a waiting caller: it got the lease."""
        with self._lock:
            self._remove((path, key_id, hostname))

    def places(self, remaining_s: Callable[[LeasePath], float]) -> list[QueuePlace]:
        """All who wait, first come first; ``remaining_s`` of the leases in the way of a path."""
        with self._lock:
            self._forget()
            waiters = list(self._waiters.values())
        index = _Index()  # of this moment; those who are refused meanwhile wait for none of what follows
        for waiter in waiters:
            index.add(waiter)
        places: list[QueuePlace] = []
        for path, together in groupby(sorted(waiters, key=_by_path), key=lambda waiter: waiter.path):
            overlapping, left_s = index.overlapping(path), remaining_s(path)
            places.extend(self._place(waiter, left_s, overlapping) for waiter in together)
        return sorted(places, key=lambda place: place.waiter.since_s)

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._waiters)

    def _place(self, waiter: Waiter, remaining_s: float, overlapping: list[float]) -> QueuePlace:
        before = bisect_left(overlapping, waiter.since_s)
        known_s = self._mean_held_s(waiter.path.repository)
        mean_s = self._longest_s if known_s is None else min(known_s, self._longest_s)
        expected_s = min(remaining_s, mean_s) + before * mean_s
        return QueuePlace(waiter, before + 1, len(overlapping), expected_s, self._now_s() - waiter.since_s)

    def _forget(self) -> None:
        before = self._now_s() - PATIENCE_S
        while self._waiters and next(iter(self._waiters.values())).seen_s < before:
            self._remove(next(iter(self._waiters)))

    def _remove(self, key: tuple[LeasePath, str, str]) -> None:
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            self._index.remove(waiter)


def _by_path(waiter: Waiter) -> tuple[str, str]:
    return waiter.path.repository, waiter.path.path


@dataclass
class _Index:
    """Since when each path is waited for. In the order of ``_keys`` all that is below a path follows it."""

    _since: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _keys: list[tuple[str, str]] = field(default_factory=list)

    def add(self, waiter: Waiter) -> None:
        key = waiter.path.repository, waiter.path.path + "/"
        if key not in self._since:
            self._since[key] = []
            insort(self._keys, key)
        insort(self._since[key], waiter.since_s)

    def remove(self, waiter: Waiter) -> None:
        key = waiter.path.repository, waiter.path.path + "/"
        since = self._since[key]
        del since[bisect_left(since, waiter.since_s)]
        if not since:
            del self._since[key]
            del self._keys[bisect_left(self._keys, key)]

    def overlapping(self, path: LeasePath) -> list[float]:
        """Since when those at, above and below the path wait, sorted."""
        above = [(path.repository, directory + "/") for directory in path_and_above(path.path)[1:]]
        first = bisect_left(self._keys, (path.repository, path.path + "/"))
        behind = bisect_left(self._keys, (path.repository, path.path + "0"))  # "0" follows "/" in the order of bytes
        lines = [self._since[key] for key in (*above, *self._keys[first:behind]) if key in self._since]
        return lines[0] if len(lines) == 1 else sorted(since for line in lines for since in line)
