"""Objects of a store: put, copy, delete one, each repeatable; delete many, with an answer for each key."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from include.storage import errors
from include.storage.store import Store, check_key

T = TypeVar("T")

BATCH = 1000  # what one DeleteObjects request takes
BATCHES_AT_ONCE = 8
SINGLES_AT_ONCE = 16  # of each batch; more than `connections` wait
OUTAGE = 16  # so many keys in succession without an answer
Refused = dict[str, errors.StoreError]
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
    _lost: errors.Unavailable | None = field(default=None, init=False)
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
            except errors.BadKey as error:
                refused[key] = error
        failure: errors.StoreError | None = None
        if self.bulk and len(good) > 1 and self._lost is None:
            try:
                self.delete(good)
            except errors.Unavailable as outage:  # it was tried often enough, of all at once
                self._lost = outage
            except errors.BucketMissing as missing:
                return refused | dict.fromkeys(good, missing)
            except errors.StoreError as error:  # of a key of them, or of the request: which one is unknown
                failure = error
            else:
                return refused
        one_by_one = merged(in_batches(good, self._single, size=1, at_once=SINGLES_AT_ONCE))
        if isinstance(failure, errors.Forbidden | errors.Unsupported) and not one_by_one:
            self.bulk = False
        return refused | one_by_one

    def _single(self, keys: Sequence[str]) -> Refused:
        if self._lost is not None:
            return {keys[0]: self._lost}
        try:
            self.delete(keys)
        except errors.Unavailable as failure:
            self._in_succession += 1
            if self._in_succession >= OUTAGE:
                self._lost = failure
            return {keys[0]: failure}
        except errors.StoreError as refusal:
            self._in_succession = 0
            return {keys[0]: refusal}
        self._in_succession = 0
        return {}


MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it is in the store, or in a dry run would be. ``unchanged``: these very bytes were there."""

    url: str
    size: int
    sha256: str
    unchanged: bool
    dry_run: bool


def put_object(
    store: Store, key: str, data: bytes, *, sha256: str | None = None, replaces: bool = False, dry_run: bool = False
) -> StoredObject:
    """Store bytes under a key, and return the object as it is then; done again with the same bytes, it changes nothing.

    ``sha256``: what their SHA-256 must be, in hex; None: not checked. ``replaces``: replace other bytes under the key.
    ``dry_run``: only report, and change nothing.
    Raises Conflict for other bytes, which stay, `CHECKSUM_MISMATCH` for another sum, and StoreError.
    """
    url, digest = f"{store.url}/{check_key(key)}", hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        what = f"{url}: the {len(data)} bytes to store have SHA-256 {digest}, not {sha256}"
        raise errors.CHECKSUM_MISMATCH(f"{what}; {errors.CHECKSUM_MISMATCH.hint}", key=key)
    meta = store.head(key)
    if meta is not None and meta.size == len(data) and store.get(key) == data:
        return StoredObject(url, len(data), digest, True, dry_run)
    if meta is not None and not replaces:
        raise _taken(url, key)
    if not dry_run:
        if replaces:
            store.put(key, data)
        elif not store.put_if_absent(key, data):
            raise _taken(url, key)
    return StoredObject(url, len(data), digest, False, dry_run)


def read_object(store: Store, key: str, *, most: int = MOST_BYTES) -> bytes:
    """All bytes of an object. Raises NotFound, `OBJECT_TOO_LARGE` for more than ``most`` bytes, and StoreError."""
    return joined(store.stream(key), f"{store.url}/{key}", key, most=most)


def joined(blocks: Iterable[bytes], name: str, key: str, *, most: int = MOST_BYTES) -> bytes:
    """All of a stream. Raises OBJECT_TOO_LARGE."""
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > most:
            raise errors.OBJECT_TOO_LARGE(f"{name} has more than {most} bytes; {errors.OBJECT_TOO_LARGE.hint}", key=key)
    return bytes(data)


def delete_objects(
    store: Store, keys: Sequence[str], *, prefix: str | None = None, dry_run: bool = False
) -> tuple[str, ...]:
    """Delete objects by key, and all below the folder ``prefix``; returns the keys that were there.

    Raises BadKey for a malformed key or folder before anything is deleted, and what refused the first key that could
    not be deleted. ``dry_run``: delete nothing.
    """
    named = [key for key in dict.fromkeys(map(check_key, keys)) if store.exists(key)]
    below = [meta.key for meta in store.list(check_key(prefix.removesuffix("/")))] if prefix is not None else []
    present = tuple(dict.fromkeys([*named, *sorted(below)]))
    if not dry_run:
        for error in store.delete_each(present).values():
            raise error
    return present


def _taken(url: str, key: str) -> errors.Conflict:
    return errors.Conflict(
        f"{url} exists with other content; choose another key, or replace it (replace=True)", key=key
    )
