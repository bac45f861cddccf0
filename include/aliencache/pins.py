"""Objects that no trim takes: what clients mount with, and what the settings pin.

What the origins say is kept in the cache, so that a full cache is trimmed even while they are away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from include.aliencache.cache import AlienCache
from include.aliencache.contents import CacheContents, Wanted, take_contents
from include.aliencache.errors import PIN_UNKNOWN, CacheError
from include.aliencache.names import OWN
from include.cvmfs.errors import CvmfsError, TagError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CATALOG_BYTES
from include.cvmfs.format.hashes import DIGEST_BYTES, DigestSet, ObjectHash
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.errors import NightshiftError
from include.settings.caches import Pins
from include.storage.errors import StoreError

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
