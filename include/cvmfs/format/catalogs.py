"""Catalogs by hash: fetched once, verified, kept decompressed within a budget of bytes, opened as private copies."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from include.cvmfs.errors import CatalogError, ObjectDamaged, ObjectMissing
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, ObjectHash, hash_bytes
from include.cvmfs.format.objects import decompress
from include.cvmfs.format.schema import Counts
from include.storage.errors import NotFound
from include.storage.store import Store

_Fact = TypeVar("_Fact")
CACHE_BYTES = 64 << 20
_TOTALS = 50_000  # catalogs whose counters are remembered
_MOUNTABLE = 10_000  # and of which all is that a catalog above states
CATALOG_BYTES = 1 << 30
"""The largest catalog that is unpacked, some six million entries; a small object that unpacks to more is a bomb."""


@dataclass(frozen=True, slots=True)
class Mountable:
    """A catalog as those above it must state it: size of its SQLite file, its own root, counters with those below."""

    path: str
    size: int
    root_entry: Dirent
    totals: Counts


class CatalogCache:
    """Reads catalogs from a store. Safe to share between threads: every ``open`` gives a copy of one's own."""

    def __init__(self, store: Store, *, budget: int = CACHE_BYTES) -> None:
        self.store = store
        self._budget = budget
        self._held = 0
        self._files: OrderedDict[bytes, bytes] = OrderedDict()
        self._totals: dict[bytes, Counts] = {}
        self._mountable: dict[bytes, Mountable] = {}
        self._lock = threading.Lock()
        self.sound = set[bytes]()
        """Digests of catalogs that were looked through with all below them."""

    def open(self, hash_: ObjectHash) -> Catalog:
        """A catalog to read or to change. Raises what ``database`` does, and CatalogError."""
        return Catalog.load(self.database(hash_), hash_)

    def database(self, hash_: ObjectHash) -> bytes:
        """The SQLite file of a catalog, verified. Raises ObjectMissing, ObjectDamaged, FormatError, StoreError."""
        with self._lock:
            if (held := self._files.get(hash_.digest)) is not None:
                self._files.move_to_end(hash_.digest)
                return held
        key = hash_.with_suffix(CATALOG).key
        try:
            stored = self.store.get(key)
        except NotFound:
            raise ObjectMissing(key) from None
        if hash_bytes(stored, hash_.algorithm).digest != hash_.digest:
            raise ObjectDamaged(key)
        database = decompress(stored, limit=CATALOG_BYTES)
        self.remember(hash_, database)
        return database

    def remember(self, hash_: ObjectHash, database: bytes) -> None:
        """Keep the file of a catalog that was just made, so that the next revision need not fetch it."""
        with self._lock:
            if hash_.digest in self._files or len(database) > self._budget:
                return
            self._files[hash_.digest] = database
            self._held += len(database)
            while self._held > self._budget:
                self._held -= len(self._files.popitem(last=False)[1])

    def completed(self, catalog: Catalog) -> Catalog:
        """The same catalog, with the counters that one of an older revision lacks, counted in the catalogs below.

        Only a first writer comes to this: catalogs as we write them lack none.
        """
        if catalog.lacks_counters_below:
            catalog.complete_counters(Counts.sum([Counts(), *map(self.totals, catalog.nested())]))
        return catalog

    def totals(self, reference: NestedRef) -> Counts:
        """The counters of a nested catalog and of all below it."""
        if (totals := self._totals.get(reference.hash.digest)) is None:
            catalog = self.completed(self.open_nested(reference.path, reference.hash))
            totals = catalog.statistics.total
            catalog.close()
            self._keep(self._totals, _TOTALS, reference.hash, totals)
        return totals

    def mountable(self, path: str, hash_: ObjectHash) -> Mountable:
        """Return what is to be stated of the catalog at ``path``, which is read once. Raises as ``open_nested``."""
        if (mountable := self._mountable.get(hash_.digest)) is None:
            with closing(self.completed(self.open(hash_))) as catalog:
                totals = catalog.statistics.total
                mountable = Mountable(catalog.path, catalog.size, catalog.root_entry, totals)
            self._keep(self._mountable, _MOUNTABLE, hash_, mountable)
            self._keep(self._totals, _TOTALS, hash_, totals)
        self._require_made_for(path, hash_, mountable)
        return mountable

    def open_nested(self, path: str, hash_: ObjectHash) -> Catalog:
        """Open the catalog mounted at ``path`` and require that it was made for that path."""
        catalog = self.open(hash_)
        self._require_made_for(path, hash_, catalog)
        return catalog

    def _keep(self, kept: dict[bytes, _Fact], most: int, hash_: ObjectHash, fact: _Fact) -> None:
        with self._lock:
            kept[hash_.digest] = fact
            if len(kept) > most:
                del kept[next(iter(kept))]

    @staticmethod
    def _require_made_for(path: str, hash_: ObjectHash, catalog: Catalog | Mountable) -> None:
        if catalog.path != path:
            raise CatalogError(path, f"the catalog {hash_} mounted here was made for {catalog.path or '/'}")
