"""Finds out what a store really keeps, by racing writers against it: documentation is no proof."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

from include.storage.errors import Conflict, StoreError, Unavailable, Unsupported
from include.storage.kinds import StoreOptions, Traits
from include.storage.open import open_store
from include.storage.store import Store, Version

__all__ = ["Traits", "may_delete", "probe"]

T = TypeVar("T")

ROUNDS = 2
BULK = 5


def probe(store: Store, *, public_url: str | None = None, writers: int = 8) -> Traits:
    """Find out what a store keeps, by racing writers in a folder of it that is removed afterwards.

    Takes some seconds on stores that are slow under contention. The key must be allowed to write and delete.
    ``public_url``: where this store is read anonymously; None: that is not tried. Raises StoreError for what hinders
    the trial as such: Forbidden, Unavailable, BucketMissing.
    """
    folder = f"{_FOLDER}{secrets.token_hex(8)}"
    trial = store.child(folder)
    keys: list[str] = []
    try:
        put_if_absent = _keeps_put_if_absent(trial, writers, keys)
        replace = _keeps_replace(trial, writers, keys)
        quotes = getattr(trial, "etag_quotes", None) is not False
        anonymous = _reads_anonymously(trial, f"{public_url.rstrip('/')}/{folder}", keys) if public_url else None
        bulk = _deletes_in_bulk(trial, keys)
        return Traits(put_if_absent, replace, bulk, anonymous, quotes)
    finally:
        one_by_one = trial.with_traits(Traits(put_if_absent=False, replace=False, bulk_delete=False))
        with contextlib.suppress(StoreError):
            one_by_one.delete(keys)
        trial.remove_folder()


def may_delete(store: Store) -> None:
    """Check that this key may delete objects of a repository. Raises Forbidden if it may not, and StoreError.

    Servers judge a request before they check whether the object exists: two absent ones are named. A folder is tried
    with two empty objects.
    """
    keys = [f"data/{name[:2]}/{name[2:]}" for name in (secrets.token_hex(20) for _ in range(2))]
    if store.is_local:
        for key in keys:
            store.put(key, b"")
    for refusal in store.delete_each(keys).values():
        raise refusal


def _keeps_put_if_absent(store: Store, writers: int, keys: list[str]) -> bool:
    for turn in range(ROUNDS):
        key = f"absent-{turn}"
        keys.append(key)
        bodies = [_body(writer) for writer in range(writers)]
        try:
            stored = _race([partial(store.put_if_absent, key, body) for body in bodies])
            if sum(stored) != 1 or store.get(key) != bodies[stored.index(True)]:
                return False
            if store.put_if_absent(key, _body(writers)):
                return False
        except Unsupported:
            return False
    return True


def _keeps_replace(store: Store, writers: int, keys: list[str]) -> bool:
    key = "replaced"
    keys.append(key)
    store.put(key, _body(0))
    stale: Version | None = None
    for _ in range(ROUNDS):
        _, current = store.get_versioned(key)
        bodies = [_body(writer) for writer in range(writers)]
        try:
            # An outdated version must lose even without competing writers.
            if stale is not None and _replacing(store, key, _body(0), stale)():
                return False
            stored = _race([_replacing(store, key, body, current) for body in bodies])
        except Unsupported:
            return False
        if sum(stored) != 1 or store.get(key) != bodies[stored.index(True)]:
            return False
        stale = current
    return True


def _reads_anonymously(store: Store, public_url: str, keys: list[str]) -> bool:
    key, body = "public", _body(0)
    keys.append(key)
    store.put(key, body)
    try:
        return open_store(public_url, options=StoreOptions(retries=2)).get(key) == body
    except StoreError:
        return False


def _deletes_in_bulk(store: Store, keys: list[str]) -> bool:
    some = [f"bulk-{number}" for number in range(BULK)]
    keys.extend(some)
    for key in some:
        store.put(key, _body(0))
    try:
        store.delete(some)
    except Unavailable:
        raise
    except StoreError:
        return False
    return not any(store.exists(key) for key in some)


def _replacing(store: Store, key: str, body: bytes, expected: Version) -> Callable[[], bool]:
    def attempt() -> bool:
        try:
            store.replace(key, body, expected=expected)
        except Conflict:
            return False
        return True

    return attempt


def _race(actions: list[Callable[[], T]]) -> list[T]:
    start = Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        start.wait()
        return action()

    with ThreadPoolExecutor(len(actions), thread_name_prefix="probe") as pool:
        return list(pool.map(run, actions))


def _body(writer: int) -> bytes:
    return f"writer {writer} {secrets.token_hex(8)}\n".encode()


_FOLDER = ".nightshift-probe-"
