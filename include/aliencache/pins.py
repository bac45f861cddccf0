"""Objects that no trim takes: what clients mount with, and what the settings pin.

What the origins say is kept in the cache, so that a full cache is trimmed even while they are away.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from include.aliencache.cache import AlienCache
from include.aliencache.contents import CacheContents, Wanted, take_contents
from include.aliencache.errors import PIN_UNKNOWN, refused
from include.aliencache.names import OWN
from include.cvmfs.errors import CvmfsError, TagError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CATALOG_BYTES
from include.cvmfs.format.hashes import DIGEST_BYTES, DigestSet, ObjectHash
from include.cvmfs.revision.repository import Repository
from include.errors import NightshiftError
from include.settings.caches import Pins
from include.storage.errors import StoreError

_KEPT = f"{OWN}/pins."


@dataclass
class PinnedObjects:
    """Digests of pinned objects; `notes` say what could not be found out."""

    digests: DigestSet = field(default_factory=DigestSet)
    notes: list[str] = field(default_factory=list)

    def __contains__(self, digest: object) -> bool:
        return digest in self.digests

    def __len__(self) -> int:
        return len(self.digests)

    def add(self, names: Iterable[ObjectHash]) -> None:
        """Pin objects."""
        for name in names:
            self.digests.add(name.digest)


def pinned_objects(
    cache: AlienCache, repositories: Iterable[str], opened: Callable[[str], Repository], pins: Pins
) -> PinnedObjects:
    """Return what stays. ``opened`` opens a repository at an origin; where none answers, what it last said counts.

    Raises CacheError for a pin that names nothing.
    """
    pinned = PinnedObjects()
    crumbs = cache.breadcrumbs()
    for fqrn, crumb in crumbs.items():
        if crumb is None:
            pinned.notes.append(f"the breadcrumb of {fqrn} cannot be read: its catalogs are not pinned")
    pinned.add(catalogs_in(cache, crumbs))
    for fqrn in repositories:
        try:
            names = _of_repository(cache, opened(fqrn), pins)
        except (CvmfsError, StoreError) as fault:
            pinned.notes.append(f"no origin of {fqrn} answers ({fault}); what it last pinned stays")
            names = _kept(cache, fqrn)
        else:
            _keep(cache, fqrn, names)
        for digest in names:
            pinned.digests.add(digest)
    return pinned


def _of_repository(cache: AlienCache, repository: Repository, pins: Pins) -> list[bytes]:
    manifest = repository.manifest
    digests = {name.digest for name in (manifest.certificate, manifest.root) if name is not None}
    choice = Wanted(pins.paths, catalogs_only=not pins.paths)
    roots = [NestedRef("", manifest.root, manifest.root_size)] if pins.paths else []
    for tag in pins.tags:
        try:
            revision = repository.tag(tag)
        except TagError as fault:
            raise PIN_UNKNOWN(cache, str(fault)) from None
        roots.append(NestedRef("", revision.hash, revision.size))
    for root in roots:
        contents = CacheContents()
        opened = partial(_opened, repository)
        chosen = take_contents(contents, root, choice, opened)
        if not chosen:
            raise PIN_UNKNOWN(cache, f"{repository.fqrn} has nothing at {', '.join(pins.paths)}")
        digests.update(item.name.digest for item in contents)
        digests.update(item.reference.hash.digest for item in contents.catalogs)
    return sorted(digests)


def _opened(repository: Repository, reference: NestedRef) -> Catalog:
    return repository.catalogs.open_nested(reference.path, reference.hash)


def _keep(cache: AlienCache, fqrn: str, digests: list[bytes]) -> None:
    place = cache.path / f"{_KEPT}{fqrn}"
    aside = place.with_name(f"{place.name}.{secrets.token_hex(8)}")
    try:
        aside.write_bytes(b"".join(digests))
        aside.replace(place)
    except OSError as fault:
        aside.unlink(missing_ok=True)
        raise refused(cache.path, fault) from fault


def _kept(cache: AlienCache, fqrn: str) -> list[bytes]:
    try:
        data = (cache.path / f"{_KEPT}{fqrn}").read_bytes()
    except OSError:
        return []
    return [data[start : start + DIGEST_BYTES] for start in range(0, len(data), DIGEST_BYTES)]


def catalogs_in(cache: AlienCache, fqrns: Iterable[str]) -> Iterator[ObjectHash]:
    """The catalogs that are in the cache and reached from the breadcrumbs of some repositories, parents first."""
    crumbs = cache.breadcrumbs()
    pending = [crumb.root for fqrn in fqrns if (crumb := crumbs.get(fqrn)) is not None]
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
