"""Who waits for a busy path, in the order of arrival: told to whoever is refused, and to whoever asks.

A publisher counts as waiting while he comes again within a minute. Nothing is reserved: the place is a hint by which
those who came first come again first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from include.gateway.paths import LeasePath, overlap

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
class Place:
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
        self._waiters: dict[tuple[LeasePath, str, str], Waiter] = {}
        self._lock = threading.Lock()

    def refused(self, path: LeasePath, key_id: str, hostname: str, remaining_s: float) -> Place:
        """Somebody found the path busy for at most ``remaining_s``; where he stands."""
        with self._lock:
            self._forget()
            now = self._now_s()
            known = self._waiters.get((path, key_id, hostname))
            waiter = Waiter(path, key_id, hostname, known.since_s if known else now, now)
            if known or len(self._waiters) < _LONGEST_LIST:
                self._waiters[path, key_id, hostname] = waiter
            return self._place(waiter, remaining_s)

    def granted(self, path: LeasePath, key_id: str, hostname: str) -> None:
        """He got it."""
        with self._lock:
            self._waiters.pop((path, key_id, hostname), None)

    def places(self, remaining_s: Callable[[LeasePath], float]) -> list[Place]:
        """Everybody who waits, first come first; ``remaining_s`` of the leases in the way of a path."""
        with self._lock:
            self._forget()
            ordered = sorted(self._waiters.values(), key=lambda waiter: waiter.since_s)
            return [self._place(waiter, remaining_s(waiter.path)) for waiter in ordered]

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._waiters)

    def _place(self, waiter: Waiter, remaining_s: float) -> Place:
        others = [
            other
            for other in self._waiters.values()
            if other.path.repository == waiter.path.repository and overlap(other.path.path, waiter.path.path)
        ]
        before = sum(other.since_s < waiter.since_s for other in others)
        known_s = self._mean_held_s(waiter.path.repository)
        mean_s = self._longest_s if known_s is None else min(known_s, self._longest_s)
        expected_s = min(remaining_s, mean_s) + before * mean_s
        return Place(waiter, before + 1, len(others), expected_s, self._now_s() - waiter.since_s)

    def _forget(self) -> None:
        before = self._now_s() - PATIENCE_S
        for key in [key for key, waiter in self._waiters.items() if waiter.seen_s < before]:
            del self._waiters[key]
