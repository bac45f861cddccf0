"""Single objects of a store: put, copy, delete; each may be repeated, and a dry run reports what would be done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from include.storage.errors import CHECKSUM_MISMATCH, OBJECT_TOO_LARGE, Conflict
from include.storage.store import Store, check_key

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
        raise CHECKSUM_MISMATCH(f"{what}; {CHECKSUM_MISMATCH.hint}", key=key)
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
            raise OBJECT_TOO_LARGE(f"{name} has more than {most} bytes; {OBJECT_TOO_LARGE.hint}", key=key)
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


def _taken(url: str, key: str) -> Conflict:
    return Conflict(f"{url} exists with other content; choose another key, or replace it (replace=True)", key=key)
