"""Deleting many objects: in batches, several under way, and with an answer for each key."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from include.storage.errors import BadKey, BucketMissing, Forbidden, StoreError, Unavailable, Unsupported
from include.storage.store import check_key

T = TypeVar("T")

BATCH = 1000  # what one DeleteObjects request takes
BATCHES_AT_ONCE = 8
SINGLES_AT_ONCE = 16  # of each batch; more than `connections` wait
OUTAGE = 16  # so many keys in succession without an answer
Refused = dict[str, StoreError]
"""The keys that were not deleted, and why."""


def in_batches(keys: Iterable[str], job: Callable[[Sequence[str]], T], *, size: int, at_once: int) -> Iterator[T]:
    """Yield what ``job`` returns for each batch of at most ``size`` keys, in order; ``at_once`` batches run in threads.

    Keys are taken from ``keys`` only as batches end, so that the memory that it needs does not grow with their number.
    What a job raises is raised here, after those under way have ended.
    """
    rest = iter(keys)
    batches = iter(lambda: list(itertools.islice(rest, size)), [])
    first = list(itertools.islice(batches, 2))
    if len(first) < 2:
        yield from map(job, first)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="delete") as pool:
        under_way: deque[Future[T]] = deque()
        try:
            for batch in itertools.chain(first, batches):
                if len(under_way) > at_once:
                    yield under_way.popleft().result()
                under_way.append(pool.submit(job, batch))
            while under_way:
                yield under_way.popleft().result()
        finally:
            for waiting in under_way:
                waiting.cancel()


def merged(answers: Iterable[Refused]) -> Refused:
    """The answers of all batches in one."""
    refused: Refused = {}
    for answer in answers:
        refused.update(answer)
    return refused


@dataclass(slots=True)
class Deletion:
    """Deletes keys of a server that takes many in one request, and finds out which of them it refused.

    ``delete`` deletes some, trying again where that helps, and raises on the first refusal. ``bulk``:
    whether requests for many are worth trying; False as soon as one was refused whose keys are then taken one by one.
    """

    delete: Callable[[Sequence[str]], None]
    bulk: bool
    _lost: Unavailable | None = field(default=None, init=False)
    _in_succession: int = field(default=0, init=False)

    def run(self, keys: Iterable[str]) -> Refused:
        """The keys that were not deleted, and why. After an outage the rest is not tried."""
        return merged(in_batches(keys, self._batch, size=BATCH, at_once=BATCHES_AT_ONCE))

    def _batch(self, keys: Sequence[str]) -> Refused:
        refused: Refused = {}
        good = []
        for key in dict.fromkeys(keys):
            try:
                good.append(check_key(key))
            except BadKey as error:
                refused[key] = error
        failure: StoreError | None = None
        if self.bulk and len(good) > 1 and self._lost is None:
            try:
                self.delete(good)
            except Unavailable as outage:  # it was tried often enough, of all at once
                self._lost = outage
            except BucketMissing as missing:
                return refused | dict.fromkeys(good, missing)
            except StoreError as error:  # of a key of them, or of the request: which one is unknown
                failure = error
            else:
                return refused
        one_by_one = merged(in_batches(good, self._single, size=1, at_once=SINGLES_AT_ONCE))
        if isinstance(failure, Forbidden | Unsupported) and not one_by_one:
            self.bulk = False
        return refused | one_by_one

    def _single(self, keys: Sequence[str]) -> Refused:
        if self._lost is not None:
            return {keys[0]: self._lost}
        try:
            self.delete(keys)
        except Unavailable as failure:
            self._in_succession += 1
            if self._in_succession >= OUTAGE:
                self._lost = failure
            return {keys[0]: failure}
        except StoreError as refusal:
            self._in_succession = 0
            return {keys[0]: refusal}
        self._in_succession = 0
        return {}
