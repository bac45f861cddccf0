"""Metadata objects: stored under their hashes, and looked for before a manifest names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from include.cvmfs.errors import ObjectDamaged, ObjectMissing
from include.cvmfs.format.compression import compress
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.format.manifest import Manifest
from include.storage.errors import NotFound
from include.storage.store import Store

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that a manifest is going to lead to. ``size``: its stored bytes; None where only its name is known."""

    hash: ObjectHash
    size: int | None = None


def store_all(store: Store, objects: Sequence[tuple[str, bytes]]) -> None:
    """Put content-addressed objects, some at a time; all are stored, and flushed, when this returns."""
    if len(objects) <= 1:
        for key, data in objects:
            store.put(key, data)
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(objects))) as pool:
            for done in [pool.submit(store.put, key, data) for key, data in objects]:
                done.result()
    if objects:
        store.flush()


def store_compressed(store: Store, data: bytes, like: ObjectHash, suffix: str, *, again: bool = False) -> Stored:
    """Store metadata, compressed, under its hash; the algorithm is that of ``like``.

    Sent unless it is there in its full size; ``again``: in any case.
    """
    packed = compress(data)
    name = hash_bytes(packed, like.algorithm, suffix)
    there = None if again else store.head(name.key)
    if there is None or there.size != len(packed):
        store.put(name.key, packed)
    return Stored(name, len(packed))


def require_stored(store: Store, objects: Iterable[Stored]) -> None:
    """Look for objects before a manifest leads to them: a store may acknowledge and lose, or keep an empty file.

    Raises ObjectMissing for one that is absent, ObjectDamaged for one that is empty or has another size than was sent.
    """
    sizes: dict[ObjectHash, int | None] = {}
    for needed in objects:
        sizes[needed.hash] = needed.size or sizes.get(needed.hash)
    with ThreadPoolExecutor(min(_AT_ONCE, len(sizes) or 1)) as pool:
        found = list(pool.map(lambda name: store.head(name.key), sizes))
    for (name, size), there in zip(sizes.items(), found, strict=True):
        if there is None:
            raise ObjectMissing(name.key, f"{store.url} does not have it; {_CURE}")
        if there.size != (size or there.size or 1):
            wanted = f"{size} bytes" if size else "its content"
            raise ObjectDamaged(name.key, f"{store.url} has {there.size} bytes of it in the place of {wanted}; {_CURE}")


def alternative_key(name: ObjectHash) -> str:
    """Where the object is found in a repository whose manifest has ``A yes``: beside the manifest."""
    return f".cvmfsalt-{name.text}"


def store_alternatives(store: Store, manifest: Manifest) -> None:
    """Copy what the manifest names to its alternative names, if its clients ask for these (``A yes``).

    Raises ObjectMissing or ObjectDamaged for an object that cannot be copied, StoreError.
    """
    for name in manifest.named if manifest.alt_paths else ():
        there, source = store.head(alternative_key(name)), store.head(name.key)
        if there is not None and source is not None and there.size == source.size:
            continue
        try:
            data = store.get(name.key)
        except NotFound:
            raise ObjectMissing(name.key) from None
        if hash_bytes(data, name.algorithm).digest != name.digest:
            raise ObjectDamaged(name.key)
        store.put(alternative_key(name), data)


_CURE = "commit again; if the current revision lost it, this names the cure: nightshift repo repair --dry-run"
