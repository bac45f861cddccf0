"""Counts that are kept for some seconds: however many ask, the ledger is read seldom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

KEPT_S = 10.0
SHARE = 20.0
"""What took long is kept for so many times as long: counting takes a twentieth of the time at most."""
MOST = 1024
"""Questions whose answers are kept."""
T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float | None = None
    value: Any = None


class RememberedCounts:
    """Answers by question. Of several who ask the same one at once, one works, and the others wait for its answer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def __call__(self, question: Hashable, work: Callable[[], T], *, kept_s: float = KEPT_S) -> T:
        """The answer to a question: what `work` returned lately, or returns now.

        `question`: identifies the work. `work`: reads the ledger. `kept_s`: for how long its answer is kept at least.
        """
        with self._lock:
            kept = self._kept.pop(question, None) or _Kept()
            # the last asked is the last in order; the first one is forgotten
            self._kept[question] = kept
            while len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]
        with kept.lock:
            if kept.until is None or self._clock() >= kept.until:
                began = self._clock()
                kept.value = work()
                ended = self._clock()
                kept.until = ended + max(kept_s, SHARE * (ended - began))
            value: T = kept.value
            return value
