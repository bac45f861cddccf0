"""Objects that a cache has of a revision: all, those below some paths, or those that a dirtab chooses."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from include.cvmfs.format.catalog import Catalog, CatalogObject, NestedRef
from include.cvmfs.format.hashes import CATALOG, DIGEST_BYTES, PARTIAL, Algorithm, DigestSet, ObjectHash
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.paths import clean_path, is_below
from include.cvmfs.sources.dirtab import Dirtab

OpenCatalog = Callable[[NestedRef], Catalog]
_ROW = struct.Struct(f"{DIGEST_BYTES}sqB")
_ALGORITHMS = tuple(Algorithm)
_PARTIAL_BIT = 128
_COMPRESSION_BIT = 64
_UNKNOWN = -1


class Wanted:
    """A choice of paths: everything; all below some paths; or what a dirtab matches and does not oppose."""

    def __init__(self, paths: Iterable[str] = (), dirtab: Dirtab | None = None, *, catalogs_only: bool = False) -> None:
        self._paths = tuple(clean_path(path) for path in paths)
        self._dirtab = dirtab
        self.catalogs_only = catalogs_only
        self.everything = "" in self._paths or not (self._paths or dirtab)

    @property
    def opposes_some(self) -> bool:
        """Tell whether something below a chosen directory may be left out."""
        return self._dirtab is not None and any(rule.negative for rule in self._dirtab.rules)

    def begins_at(self, path: str) -> bool:
        """Tell whether an entry is chosen with all below it."""
        return path in self._paths or (self._dirtab is not None and self._dirtab.matches(path))

    def leads_below(self, path: str) -> bool:
        """Tell whether something below a directory may be chosen."""
        below = any(is_below(chosen, path) for chosen in self._paths)
        return below or (self._dirtab is not None and self._dirtab.leads_below(path))

    def leaves_out(self, path: str) -> bool:
        """Tell whether a negative rule speaks against an entry."""
        return self._dirtab is not None and self._dirtab.opposes(path)


@dataclass(frozen=True, slots=True)
class CatalogOfRevision:
    """A catalog, and whether everything below it was chosen, contents too."""

    reference: NestedRef
    whole: bool


@dataclass
class CacheContents:
    """Objects by the first byte of their hashes, 29 bytes each; catalogs, parents first."""

    rows: list[bytearray] = field(default_factory=lambda: [bytearray() for _ in range(256)])
    catalogs: list[CatalogOfRevision] = field(default_factory=list)
    objects: int = 0
    bytes: int = 0
    _names: DigestSet = field(default_factory=DigestSet)

    def add(self, item: CatalogObject) -> None:
        """Take an object; one that is here stays once."""
        if not self._names.add(item.name.digest):
            return
        flags = _ALGORITHMS.index(item.name.algorithm)
        flags |= _PARTIAL_BIT if item.name.suffix == PARTIAL else 0
        flags |= _COMPRESSION_BIT if item.compression is Compression.NONE else 0
        size = _UNKNOWN if item.size is None else item.size
        self.rows[item.name.digest[0]] += _ROW.pack(item.name.digest, size, flags)
        self.objects += 1
        self.bytes += max(size, 0)

    def in_shard(self, number: int) -> Iterator[CatalogObject]:
        """The objects whose hashes begin with this byte."""
        for digest, size, flags in _ROW.iter_unpack(self.rows[number]):
            name = ObjectHash(digest, _ALGORITHMS[flags & 7], PARTIAL if flags & _PARTIAL_BIT else "")
            compression = Compression.NONE if flags & _COMPRESSION_BIT else Compression.ZLIB
            yield CatalogObject(name, None if size == _UNKNOWN else size, compression)

    def __iter__(self) -> Iterator[CatalogObject]:
        return chain.from_iterable(map(self.in_shard, range(256)))


def take_contents(contents: CacheContents, root: NestedRef, choice: Wanted, opened: OpenCatalog) -> int:
    """Add what is wanted of a revision; ``opened`` reads a catalog. Returns how many entries were chosen.

    Raises what reading catalogs raises.
    """
    chosen = 0
    pending = [(root, choice.everything)]
    while pending:
        reference, inside = pending.pop()
        catalog = opened(reference)
        whole = inside and not choice.opposes_some
        contents.catalogs.append(CatalogOfRevision(reference, whole and not choice.catalogs_only))
        if whole:
            chosen += 1
            if not choice.catalogs_only:
                for item in catalog.objects():
                    contents.add(item)
            pending += [(nested, True) for nested in catalog.nested()]
        else:
            chosen += _take_some(contents, catalog, inside, choice, pending)
        catalog.close()
    return chosen


def _take_some(
    contents: CacheContents, catalog: Catalog, inside: bool, choice: Wanted, pending: list[tuple[NestedRef, bool]]
) -> int:
    """Walk through the rows of one catalog, of which a part is chosen."""
    chosen, directories = 0, [(catalog.path, inside)]
    while directories:
        above, all_below = directories.pop()
        for child in catalog.listing(above):
            path = f"{above}/{child.name}"
            if choice.leaves_out(path):
                continue
            here = all_below or choice.begins_at(path)
            chosen += here and not all_below
            if child.is_directory:
                if not here and not choice.leads_below(path):
                    continue
                nested = catalog.nested_at(path) if child.mountpoint else None
                if nested is not None:
                    pending.append((nested, here))
                elif not child.bind:
                    directories.append((path, here))
            elif here and child.is_regular and not child.external and not choice.catalogs_only:
                for chunk in catalog.chunks(path, child) if child.chunked else ():
                    contents.add(CatalogObject(chunk.hash, chunk.size, child.compression))
                if child.hash is not None and not child.chunked:
                    contents.add(CatalogObject(child.hash, child.size, child.compression))
    return chosen


def catalog_name(reference: NestedRef) -> ObjectHash:
    """The object of a catalog, with the letter that it has in a store."""
    return reference.hash.with_suffix(CATALOG)
