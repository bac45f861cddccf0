"""Objects of a revision that a cache has, and those that no trim takes: what clients mount with, what settings pin.

What the origins say of pins is kept in the cache, so that a full cache is trimmed even while they are away.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from include.aliencache.cache import AlienCache
from include.aliencache.errors import PIN_UNKNOWN, CacheError
from include.aliencache.names import OWN
from include.cvmfs.errors import CvmfsError, TagError
from include.cvmfs.format.catalog import Catalog, CatalogObject, NestedRef
from include.cvmfs.format.catalogs import CATALOG_BYTES
from include.cvmfs.format.hashes import CATALOG, DIGEST_BYTES, PARTIAL, Algorithm, DigestSet, ObjectHash
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.paths import clean_path, is_below
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.dirtab import Dirtab
from include.errors import NightshiftError
from include.settings.caches import Pins
from include.storage.errors import StoreError

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


_KEPT = f"{OWN}/pins."


@dataclass
class PinnedObjects:
    """Digests of pinned objects; what could not be found out; repositories whose origins do not answer."""

    digests: DigestSet = field(default_factory=DigestSet)
    notes: list[str] = field(default_factory=list)
    origins_away: list[str] = field(default_factory=list)

    def __contains__(self, digest: object) -> bool:
        return digest in self.digests

    def __len__(self) -> int:
        return len(self.digests)

    def add(self, names: Iterable[ObjectHash]) -> None:
        """Pin objects."""
        for name in names:
            self.digests.add(name.digest)


def pinned_objects(
    cache: AlienCache,
    repositories: Iterable[str],
    opened: Callable[[str], Repository],
    pins: Pins,
    *,
    dry_run: bool = False,
) -> PinnedObjects:
    """Return what stays. ``opened`` opens a repository at an origin; where none answers, what it last said counts.

    Raises CacheError for a pin that names nothing in any of the repositories.
    """
    pinned = PinnedObjects()
    crumbs = cache.breadcrumbs()
    for fqrn, crumb in crumbs.items():
        if crumb is None:
            pinned.notes.append(f"the breadcrumb of {fqrn} cannot be read: its catalogs are not pinned")
    pinned.add(catalogs_in(cache, [crumb.root for crumb in crumbs.values() if crumb is not None]))
    unknown = {*pins.paths, *pins.tags}
    for fqrn in repositories:
        try:
            repository = opened(fqrn)
            names = _of_repository(cache, repository, pins, unknown)
        except (CvmfsError, StoreError, CacheError) as fault:
            pinned.origins_away.append(fqrn)
            pinned.notes.append(f"no origin of {fqrn} answers ({fault}); what it last pinned stays")
            names = _kept(cache, fqrn, pinned.notes)
        else:
            if not dry_run:
                _keep(cache, fqrn, names, pinned.notes)
        for digest in names:
            pinned.digests.add(digest)
    if unknown and not pinned.origins_away:
        raise PIN_UNKNOWN(cache, f"none of its repositories has {', '.join(sorted(unknown))}")
    return pinned


def _of_repository(cache: AlienCache, repository: Repository, pins: Pins, unknown: set[str]) -> list[bytes]:
    """Digests of what is pinned of one repository; takes from ``unknown`` the pins that name something in it."""
    manifest = repository.manifest
    digests = {name.digest for name in (manifest.certificate, manifest.root) if name is not None}
    digests.update(name.digest for name in catalogs_in(cache, [manifest.root]))
    roots = [NestedRef("", manifest.root, manifest.root_size)] if pins.paths else []
    for tag in pins.tags:
        try:
            revision = repository.tag(tag)
        except TagError:
            continue  # of another repository of the cache
        unknown.discard(tag)
        roots.append(NestedRef("", revision.hash, revision.size))
    for root in roots:
        tree = Revision(repository.catalogs, root.hash)
        paths = [path for path in pins.paths if tree.lookup(path) is not None]
        unknown.difference_update(paths)
        if pins.paths and not paths:
            continue
        contents = CacheContents()
        take_contents(contents, root, Wanted(paths, catalogs_only=not paths), partial(_opened, repository))
        digests.update(item.name.digest for item in contents)
        digests.update(item.reference.hash.digest for item in contents.catalogs)
    return sorted(digests)


def _opened(repository: Repository, reference: NestedRef) -> Catalog:
    return repository.catalogs.open_nested(reference.path, reference.hash)


def _keep(cache: AlienCache, fqrn: str, digests: list[bytes], notes: list[str]) -> None:
    try:
        cache.complete()
        with cache.writing() as (file, temporary):
            file.write(b"".join(digests))
            file.finish()
            temporary.replace(cache.path / f"{_KEPT}{fqrn}")
    except CacheError as fault:  # a full cache is trimmed all the same
        notes.append(f"what is pinned of {fqrn} could not be kept for when its origins are away ({fault})")


def _kept(cache: AlienCache, fqrn: str, notes: list[str]) -> list[bytes]:
    try:
        data = (cache.path / f"{_KEPT}{fqrn}").read_bytes()
    except OSError as fault:
        notes.append(f"what was last pinned of {fqrn} cannot be read either: {fault.strerror}")
        return []
    return [data[start : start + DIGEST_BYTES] for start in range(0, len(data), DIGEST_BYTES)]


def catalogs_in(cache: AlienCache, roots: Iterable[ObjectHash]) -> Iterator[ObjectHash]:
    """The catalogs that are in the cache and reached from some root catalogs, parents first."""
    pending = list(roots)
    while pending:
        name = pending.pop()
        if (catalog := catalog_in(cache, name)) is None:
            continue
        yield name
        pending += [nested.hash for nested in catalog.nested()]
        catalog.close()


def catalog_in(cache: AlienCache, name: ObjectHash) -> Catalog | None:
    """The catalog of that name as the cache has it; None if it is not there, or cannot be read as one."""
    try:
        descriptor = cache.open(name)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > CATALOG_BYTES:
            return None
        try:
            return Catalog.load(file.read())
        except (NightshiftError, OSError):
            return None
