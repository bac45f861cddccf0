"""Lists of condemned objects: what a collection is going to delete, published before it does (docs/decisions).

A list is cut into 256 shards by the first byte of the digest, so that a publication reads and waits for those only that
its own objects are in. Shards and the index that names them are content-addressed (docs/formats.md, collection
generation); the index's name is the list's.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from include.cvmfs.coordination.generation import SHARDS, AffectedShards, Look
from include.cvmfs.errors import CollectionRunning, FormatError, ObjectDamaged, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import DIGEST_BYTES, Algorithm, DigestSet, ObjectHash, identity
from include.cvmfs.revision.revision import Revision
from include.storage.errors import NotFound
from include.storage.store import Store

__all__ = [
    "SHARDS", "Index", "condemned_among", "condemned_shards", "hashes_in", "key_of", "read_index", "read_list",
    "read_shard", "records_of", "require_kept", "store_list", "store_shards",
]  # fmt: skip

PREFIX = ".nightshift/condemned"
RECORD_BYTES = DIGEST_BYTES + 2
MAX_SHARD_RECORDS = 1 << 24
"""Limit of a shard that is read: 369 MB; a list of four thousand million objects."""
CACHE_BYTES = 64 << 20
"""Shards that a process keeps, the last used ones."""
_HEAD = b"nightshift condemned 1\n"
_INDEX_HEAD = b"nightshift condemned 2\n"
_ENTRY = struct.Struct(">32sQ")
_INDEX_BYTES = len(_INDEX_HEAD) + SHARDS * _ENTRY.size
_ALGORITHMS = (Algorithm.SHA1, Algorithm.RMD160, Algorithm.SHAKE128)
_PLAIN = b"\0"
_SUFFIXES = frozenset(b"\0ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_AT_ONCE = 8
_WHAT = "list of condemned objects"


def key_of(name: str) -> str:
    """Return where the list, or the shard, of that name is stored."""
    return f"{PREFIX}/{name}"


@dataclass(frozen=True, slots=True)
class Index:
    """The shards of a list by number: names (None: empty) and counts of objects."""

    names: tuple[str | None, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Objects of the whole list."""
        return sum(self.counts)


# -- records


def records_of(hashes: Iterable[ObjectHash]) -> bytes:
    """Objects as they are listed, in order, each once."""
    return b"".join(sorted({_record(hash_) for hash_ in hashes}))


def hashes_in(records: bytes) -> Iterator[ObjectHash]:
    """The objects of records, as :func:`read_shard` and :func:`records_of` return them."""
    for record in _each(records):
        suffix = record[DIGEST_BYTES:-1].replace(_PLAIN, b"").decode("ascii")
        yield ObjectHash(record[:DIGEST_BYTES], _ALGORITHMS[record[-1]], suffix)


# -- writing


def store_shards(store: Store, shards: Iterable[tuple[int, bytes]]) -> str:
    """Store a list of which the shards come in ascending order of their numbers, each as :func:`records_of`.

    Shards that are empty or left out hold nothing. The index is stored last; returns its name. Raises StoreError.
    """
    entries = [_ENTRY.pack(bytes(32), 0)] * SHARDS
    under_way: deque[Future[None]] = deque()
    before = -1
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="condemned") as pool:
        for number, records in shards:
            if not before < number < SHARDS or (records and {records[0], records[-RECORD_BYTES]} != {number}):
                raise ValueError(f"shard {number} after {before}, or records of another shard")
            before = number
            if not records:
                continue
            data = _HEAD + records
            digest = hashlib.sha256(data)
            entries[number] = _ENTRY.pack(digest.digest(), len(records) // RECORD_BYTES)
            under_way.append(pool.submit(store.put, key_of(digest.hexdigest()), data))
            if len(under_way) > _AT_ONCE:  # no more of the list is in memory than is being sent
                under_way.popleft().result()
        for sent in under_way:
            sent.result()
    store.flush()
    index = _INDEX_HEAD + b"".join(entries)
    name = hashlib.sha256(index).hexdigest()
    store.put(key_of(name), index)
    store.flush()
    return name


def store_list(store: Store, hashes: Iterable[ObjectHash]) -> str:
    """Store a list of objects in any order; its name. Raises StoreError."""
    shards: dict[int, list[ObjectHash]] = {}
    for hash_ in hashes:
        shards.setdefault(hash_.digest[0], []).append(hash_)
    return store_shards(store, ((number, records_of(shards[number])) for number in sorted(shards)))


# -- reading


def read_index(store: Store, name: str) -> Index:
    """The index of a list, verified. Raises as :func:`read_shard`."""
    index = _cache.get(name)
    if not isinstance(index, Index):
        index = _parse_index(_read(store, name, _INDEX_BYTES), name)
        _cache.keep(name, index, _INDEX_BYTES)
    return index


def read_shard(store: Store, index: Index, number: int) -> bytes:
    """The records of a shard, verified as a whole: hash, form, order, and that every record belongs to it.

    Raises ObjectMissing, ObjectDamaged, FormatError, StoreError.
    """
    name, count = index.names[number], index.counts[number]
    if name is None:
        return b""
    records = _cache.get(name)
    if not isinstance(records, bytes):
        records = _read_shard(store, name, count)
    if len(records) != count * RECORD_BYTES or {records[0], records[-RECORD_BYTES]} != {number}:
        raise FormatError(_WHAT, f"{key_of(name)} is not shard {number} with {count} objects, as in its index")
    _cache.keep(name, records, len(records))
    return records


def read_list(store: Store, name: str) -> Iterator[ObjectHash]:
    """The objects of a list, in order; each shard is verified before its first. Raises as :func:`read_shard`."""
    index = read_index(store, name)
    for number in range(SHARDS):
        yield from hashes_in(read_shard(store, index, number))


def condemned_among(
    store: Store, name: str, identities: DigestSet | Collection[bytes], shards: Container[int] | None = None
) -> frozenset[bytes]:
    """Return those of the identities (``digests.identity``) that are on a list, or in these shards of it.

    Only shards are read that one of the identities could be in. Raises as :func:`read_shard`.
    """
    if isinstance(identities, DigestSet):
        possible = identities.first_bytes()
    else:
        identities = frozenset(identities)
        possible = {key[0] for key in identities}
    index, condemned = read_index(store, name), set()
    for number in sorted(possible):
        if shards is None or number in shards:
            for record in _each(read_shard(store, index, number)):
                record_identity = record[:-1].removesuffix(_PLAIN) if record[DIGEST_BYTES] == 0 else record[:-1]
                if record_identity in identities:
                    condemned.add(record_identity)
    return frozenset(condemned)


def condemned_shards(
    store: Store, missed: AffectedShards, identities: DigestSet | Collection[bytes]
) -> tuple[int, ...]:
    """The shards that hold any of the identities, among those of a list that count. Raises as :func:`read_shard`."""
    return tuple(sorted({object_id[0] for object_id in condemned_among(store, missed.name, identities, missed.shards)}))


def require_kept(store: Store, look: Look, root: ObjectHash, *, named: str) -> None:
    """Judge a revision that is to be named or published again: all that it needs must outlive a collection that runs.

    ``look``: taken before the manifest was read. ``named``: what the error calls the revision. Without a list that is
    out nothing is read. What was in a shard that is swept may be deleted, so the whole list counts. Raises
    CollectionRunning, ObjectMissing, and as :func:`read_shard`.
    """
    if look.running_list is None:
        return
    needed = DigestSet(identity(name) for name, _ in Revision(CatalogCache(store), root).objects_below())
    if going := condemned_among(store, look.running_list, needed):
        what = f"{len(going)} of its objects are on the list of collection {look.token}"
        raise CollectionRunning(named, what, number=look.completed + 1)


# -- private


class _Cache:
    """Indexes and shards by their names. They are content-addressed: what was verified once is right for ever."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held: OrderedDict[str, tuple[Index | bytes, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> Index | bytes | None:
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return None
            self._held.move_to_end(name)
            return held[0]

    def keep(self, name: str, value: Index | bytes, size: int) -> None:
        with self._lock:
            if name in self._held or size > self._budget:
                return
            self._held[name] = (value, size)
            self._bytes += size
            while self._bytes > self._budget:
                self._bytes -= self._held.popitem(last=False)[1][1]


_cache = _Cache(CACHE_BYTES)


def _read_shard(store: Store, name: str, count: int) -> bytes:
    size = len(_HEAD) + count * RECORD_BYTES
    data = _read(store, name, size)
    if len(data) > size:
        raise FormatError(_WHAT, f"{key_of(name)} is longer than in its index")
    if not data.startswith(_HEAD):
        raise FormatError(_WHAT, f"{key_of(name)} does not begin as one")
    records = data[len(_HEAD) :]
    _require_form(records, key_of(name))
    if len(records) != count * RECORD_BYTES:
        raise FormatError(_WHAT, f"{key_of(name)} is shorter than in its index")
    return records


def _parse_index(data: bytes, name: str) -> Index:
    if data.startswith(_HEAD):
        what = "is a list of a commit before Nightshift 0.2.0; end that collection with that commit first"
        raise FormatError(_WHAT, f"{key_of(name)} {what}")
    if not data.startswith(_INDEX_HEAD) or len(data) != _INDEX_BYTES:
        raise FormatError(_WHAT, f"{key_of(name)} does not begin as one, or is no index of {SHARDS} shards")
    names, counts = [], []
    for digest, count in _ENTRY.iter_unpack(data[len(_INDEX_HEAD) :]):
        if any(digest) is not bool(count) or count > MAX_SHARD_RECORDS:
            raise FormatError(_WHAT, f"{key_of(name)} has a shard of {count} objects, which cannot be")
        names.append(digest.hex() if count else None)
        counts.append(count)
    return Index(tuple(names), tuple(counts))


def _read(store: Store, name: str, size: int) -> bytes:
    """An object below the prefix, which has its hash; of one that is longer than ``size`` little more than that."""
    key, data = key_of(name), bytearray()
    try:
        for piece in store.stream(key):
            data += piece
            if len(data) > size:
                return bytes(data)
    except NotFound:
        raise ObjectMissing(key, "the list that the collection generation names is not in the store") from None
    if hashlib.sha256(data).hexdigest() != name:
        raise ObjectDamaged(key, "does not have the hash that names it; run the collection again")
    return bytes(data)


def _require_form(records: bytes, what: str) -> None:
    """Raises FormatError unless these are records in ascending order, each once."""
    if len(records) % RECORD_BYTES:
        raise FormatError(_WHAT, f"{what}: {len(records)} bytes are no whole records")
    if not set(records[RECORD_BYTES - 1 :: RECORD_BYTES]) <= set(range(len(_ALGORITHMS))):
        raise FormatError(_WHAT, f"{what} names an unknown hash algorithm")
    if not set(records[DIGEST_BYTES::RECORD_BYTES]) <= _SUFFIXES:
        raise FormatError(_WHAT, f"{what} names an unknown kind of object")
    before = b""
    for record in _each(records):
        if record <= before:
            raise FormatError(_WHAT, f"{what} is not in order")
        before = record


def _each(records: bytes) -> Iterator[bytes]:
    return (records[start : start + RECORD_BYTES] for start in range(0, len(records), RECORD_BYTES))


def _record(hash_: ObjectHash) -> bytes:
    return hash_.digest + (hash_.suffix.encode() or _PLAIN) + bytes([_ALGORITHMS.index(hash_.algorithm)])
