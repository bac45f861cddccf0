"""Trying again: how long to wait, and how many requests of one process may be in flight at the same time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from include.storage.errors import StoreError, Unavailable
from include.storage.refusals import read_failure
from include.storage.store import Counters

T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


def pause_s(attempt: int, draw: float) -> float:
    """Seconds to wait after the failure of attempt 0, 1, ...: full jitter, ``draw`` being uniform in [0, 1)."""
    return draw * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 30))


def library_errors() -> tuple[type[Exception], ...]:
    """What obstore raises. A function, so that the library is imported only when something is wrong or used."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, NotImplementedError, ValueError)


class Retrier:
    """Runs requests, at most ``connections`` at a time, and repeats those that failed for a passing reason."""

    def __init__(
        self,
        where: str,
        counters: Counters,
        *,
        retries: int,
        connections: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.where = where
        self.retries = retries
        self._counters = counters
        self._slots = threading.BoundedSemaphore(connections)
        self._sleep = sleep

    def once(self, key: str, request: Callable[[], T]) -> T:
        """One attempt; its failure as a leaf of our tree."""
        try:
            with self._slots:
                return request()
        except StoreError:
            raise
        except library_errors() as error:
            # The library's own text repeats itself over thirty lines; its content is in ours.
            raise read_failure(error).error(key, self.where) from None

    def run(self, key: str, request: Callable[[], T]) -> T:
        """Attempts until one succeeds, fails for good, or the last allowed one failed."""
        attempt = 0
        while True:
            try:
                return self.once(key, request)
            except Unavailable as failure:
                self.before_next(attempt, failure)
                attempt += 1

    def before_next(self, attempt: int, failure: Unavailable) -> None:
        """Count and wait before the attempt that follows ``attempt``; raises ``failure`` if there is to be none."""
        if attempt >= self.retries:
            if attempt:
                raise Unavailable(
                    f"{failure}; gave up after {attempt + 1} attempts. Start the store, or correct its address",
                    key=failure.key,
                    cause=failure.cause,
                )
            raise failure
        self._counters.retry(failure.cause)
        self._sleep(pause_s(attempt, random.random()))  # noqa: S311 - not a secret
