"""Lists of condemned objects: what a collection is going to delete, published before it does (docs/decisions).

A list is content-addressed: its name is the SHA-256 of its bytes. After a line that says what it is come records of 22
bytes in ascending order: digest, suffix letter (NUL: none), hash algorithm (0 sha1, 1 rmd160, 2 shake128).
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator

from include.cvmfs.coordination.generation import Look
from include.cvmfs.errors import CollectionRunning, FormatError, ObjectDamaged, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.digests import DigestSet, identity
from include.cvmfs.format.hashes import DIGEST_BYTES, Algorithm, ObjectHash
from include.cvmfs.revision.revision import Revision
from include.storage.errors import NotFound
from include.storage.store import Store

PREFIX = ".nightshift/condemned"
RECORD_BYTES = DIGEST_BYTES + 2
_HEAD = b"nightshift condemned 1\n"
_ALGORITHMS = (Algorithm.SHA1, Algorithm.RMD160, Algorithm.SHAKE128)
_PLAIN = b"\0"


def key_of(name: str) -> str:
    """Where the list of that name is stored."""
    return f"{PREFIX}/{name}"


def format_list(hashes: Iterable[ObjectHash]) -> bytes:
    """A list in its form of storage; each object once."""
    return _HEAD + b"".join(sorted({_record(one) for one in hashes}))


def store_list(store: Store, hashes: Iterable[ObjectHash]) -> str:
    """Store a list; its name."""
    data = format_list(hashes)
    name = hashlib.sha256(data).hexdigest()
    store.put(key_of(name), data)
    return name


def read_list(store: Store, name: str) -> Iterator[ObjectHash]:
    """The objects of a list, in order. Its hash is verified at the end: act on nothing before that.

    Raises ObjectMissing, ObjectDamaged, FormatError, StoreError.
    """
    for record in _records(store, name):
        if record[-1] >= len(_ALGORITHMS):
            raise FormatError("list of condemned objects", f"{key_of(name)} names an unknown hash algorithm")
        suffix = record[DIGEST_BYTES:-1].replace(_PLAIN, b"").decode("ascii", "replace")
        yield ObjectHash(record[:DIGEST_BYTES], _ALGORITHMS[record[-1]], suffix)


def condemned_among(store: Store, name: str, identities: Container[bytes]) -> frozenset[bytes]:
    """Those of the identities (``digests.identity``) that are on a list. Memory does not grow with the list.

    Raises as :func:`read_list`.
    """
    found = set()
    for record in _records(store, name):
        one = record[:-1].removesuffix(_PLAIN) if record[DIGEST_BYTES] == 0 else record[:-1]
        if one in identities:
            found.add(one)
    return frozenset(found)


def require_kept(store: Store, look: Look, root: ObjectHash, *, named: str) -> None:
    """Judge a revision that is to be named or published again: all that it needs must outlive a collection that runs.

    ``look``: taken before the manifest was read. ``named``: what the error calls the revision. Without a list that is
    out nothing is read. Raises CollectionRunning, ObjectMissing, and as :func:`read_list`.
    """
    if look.running_list is None:
        return
    needed = DigestSet(identity(name) for name, _ in Revision(CatalogCache(store), root).objects_below())
    if going := condemned_among(store, look.running_list, needed):
        raise CollectionRunning(named, f"{len(going)} of its objects are on the list of collection {look.token}")


def _records(store: Store, name: str) -> Iterator[bytes]:
    key, digest = key_of(name), hashlib.sha256()
    held, begun = b"", False
    try:
        for piece in store.stream(key):
            digest.update(piece)
            held += piece
            if not begun:
                if len(held) < len(_HEAD):
                    continue
                if not held.startswith(_HEAD):
                    raise FormatError("list of condemned objects", f"{key} does not begin as one")
                held, begun = held[len(_HEAD) :], True
            whole = len(held) - len(held) % RECORD_BYTES
            for start in range(0, whole, RECORD_BYTES):
                yield held[start : start + RECORD_BYTES]
            held = held[whole:]
    except NotFound:
        raise ObjectMissing(key, "the list that the collection generation names is not in the store") from None
    if held or not begun or digest.hexdigest() != name:
        raise ObjectDamaged(key, "does not have the hash that names it; let the collector begin anew")


def _record(one: ObjectHash) -> bytes:
    return one.digest + (one.suffix.encode() or _PLAIN) + bytes([_ALGORITHMS.index(one.algorithm)])
