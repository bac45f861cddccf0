"""Deleting what is on the list that is out: in requests of many keys, several under way, each under a fresh claim."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from include.cvmfs.collect.claim import Claim
from include.cvmfs.collect.rules import SETTLE, CollectionRules
from include.cvmfs.coordination.condemned import SHARDS, Index, hashes_in, read_shard
from include.cvmfs.coordination.generation import CollectionStep
from include.cvmfs.format.hashes import ObjectHash
from include.storage.errors import StoreError
from include.storage.store import Store

REQUEST = 1000  # keys; what one request of S3 takes
REQUESTS_AT_ONCE = 8
GROUP = 20_000
"""Keys of whole shards, at least, between two renewals of the claim."""
_TRIES = 3
_STEP_S = 60.0
_ANSWERED = frozenset({"429", "503"})  # the server answered that it did nothing


@dataclass(frozen=True, slots=True)
class Swept:
    """A group of shards that is done: the number of the last, what was deleted, and the keys that were refused."""

    last: int
    deleted: Sequence[ObjectHash]
    failed: Mapping[str, StoreError]


KeysOf = Callable[[ObjectHash], Sequence[str]]


def sweep(
    store: Store, index: Index, claim: Claim, *, keys_of: KeysOf, rules: CollectionRules
) -> Generator[Swept, None, None]:
    """Delete shard by shard from where the claim's document is; each group is written down when it is done.

    ``keys_of``: the keys of an object. A shard counts as swept when each request for it was answered. After one that
    was not, or after a collector that died, which the store may carry out later, none counts until it has settled.
    Raises CollectionBusy as soon as another has taken over; before a request is sent the claim is young enough that
    none can have. Raises as ``read_shard``, and StoreError for the document.
    """
    with (
        # Closed here, not when it is garbage: its threads would be waited for wherever Python collects garbage then.
        closing(_groups(store, index, claim.document.swept)) as groups,
        ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="sweep") as pool,
        ThreadPoolExecutor(1, thread_name_prefix="renew") as renewing,
    ):
        renewal: Future[None] | None = None
        settled: float | None = None  # when the last request without an answer can do no more harm
        if claim.took_over and not store.is_local:
            settled = time.monotonic() + SETTLE.total_seconds()  # after those of the collector that died
        for last, objects in groups:
            rules.pause()
            before = _unanswered(store)
            deleted, failed, unclear = _delete(store, objects, claim, keys_of, pool)
            if unclear or _unanswered(store) != before:
                settled = time.monotonic() + SETTLE.total_seconds()
            if renewal is not None:
                renewal.result()
            if settled is not None and last == SHARDS - 1:
                _settle(claim, settled - time.monotonic(), rules)
                settled = None
            if settled is not None and time.monotonic() >= settled:
                settled = None
            swept = None if settled is not None else last + 1
            renewal = renewing.submit(claim.move, CollectionStep.RENEW, swept=swept)
            yield Swept(last, deleted, failed)
        if renewal is not None:
            renewal.result()


def _unanswered(store: Store) -> int:
    """Requests that were repeated without an answer: the first of two may still be under way somewhere."""
    return sum(count for cause, count in store.counters.retries.items() if cause not in _ANSWERED)


def _settle(claim: Claim, seconds: float, rules: CollectionRules) -> None:
    """Wait, and keep the claim meanwhile."""
    while seconds > 0:
        step = min(seconds, _STEP_S)
        rules.wait(step)
        seconds -= step
        claim.keep()


def _groups(store: Store, index: Index, first: int) -> Generator[tuple[int, list[ObjectHash]], None, None]:
    """Objects of whole shards, with the number of the last one; the next shards are read meanwhile."""
    with ThreadPoolExecutor(4, thread_name_prefix="lists") as pool:
        numbers = iter(range(first, SHARDS))
        ahead: deque[tuple[int, Future[bytes]]] = deque()
        group: list[ObjectHash] = []
        while True:
            while len(ahead) < 8 and (number := next(numbers, None)) is not None:
                ahead.append((number, pool.submit(read_shard, store, index, number)))
            if not ahead:
                return
            number, job = ahead.popleft()
            group.extend(hashes_in(job.result()))
            if len(group) >= GROUP or number == SHARDS - 1:
                yield number, group
                group = []


def _delete(
    store: Store, objects: Sequence[ObjectHash], claim: Claim, keys_of: KeysOf,
    pool: ThreadPoolExecutor,
) -> tuple[Sequence[ObjectHash], Mapping[str, StoreError], bool]:  # fmt: skip
    """What was deleted, the keys that were refused, and whether a request was given up without an answer."""

    def request(keys: Sequence[str]) -> Mapping[str, StoreError] | None:
        """What was refused; None if the claim has to be renewed before anything is sent."""
        if not claim.fresh:
            return None
        return store.delete_each(keys)

    waiting = [key for hash_ in objects for key in keys_of(hash_)]
    failed: dict[str, StoreError] = {}
    tries, unclear = 0, False
    while waiting and tries < _TRIES:
        failed = {}
        if not claim.fresh:
            claim.move(CollectionStep.RENEW)
        jobs = [
            (part, pool.submit(request, part))
            for part in (waiting[start : start + REQUEST] for start in range(0, len(waiting), REQUEST))
        ]
        stale: list[str] = []
        for part, job in jobs:
            if (refused := job.result()) is None:
                stale.extend(part)
            else:
                failed.update(refused)
                unclear |= any(error.retryable for error in refused.values())
        tries += not stale
        waiting = [*failed, *stale]
    if failed:
        objects = [hash_ for hash_ in objects if not any(key in failed for key in keys_of(hash_))]
    return objects, failed, unclear
