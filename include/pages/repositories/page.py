"""*Repositories*: revisions, sizes, what was reused, tags, leases, collections, whitelist and replicas of each."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from include.care.replicas.look import looks_of
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.counters import Counts
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.trust import fetch_trusted
from include.pages.addresses import night, repository, run_of
from include.pages.asked import Asked
from include.pages.leases import open_leases
from include.pages.repositories import rows, view
from include.site.site import Site
from include.storage.errors import StoreError

EVERY_S = 20
ROOT_BYTES = 4 << 20
"""The largest root catalog that is read for the sums over a whole repository, in bytes."""


@dataclass(frozen=True, slots=True)
class StoredHead:
    """What the store has now. `invalid`: why its manifest cannot be trusted; `whitelist_ends`: None without keys.

    `sums`: over the whole repository; None where the root catalog is too large, or cannot be read.
    """

    manifest: Manifest | None = None
    whitelist_ends: datetime | None = None
    sums: Counts | None = None
    invalid: str | None = None


def read(asked: Asked) -> dict[str, Any]:
    """All repositories; with `repository`, or where there is only one, that one."""
    known = asked.site.settings.repositories
    fqrn = asked.choice("repository", known)
    if fqrn is None and len(known) == 1:
        fqrn = next(iter(known))
    shared = {
        "repositories": sorted(known),
        "repository": fqrn,
        "every": EVERY_S,
        "night_url": night,
        "repository_url": repository,
    }
    if fqrn is None:
        return shared | {"details": None, "all": [_short(asked, name) for name in sorted(known)]}
    return shared | {"details": _repository(asked, fqrn)}


def _short(asked: Asked, fqrn: str) -> dict[str, Any]:
    """One repository in the list of all, from the ledger alone."""
    ledger = asked.site.ledger
    lagging = view.worst(looks_of(ledger, fqrn))
    return {
        "name": fqrn,
        "url": repository(fqrn),
        "newest": rows.newest_change(ledger, fqrn),
        "collection": next(iter(rows.newest_collections(ledger, fqrn, limit=1)), None),
        "damaged": rows.damaged_objects(ledger, fqrn),
        "replica": lagging,
        "replica_kind": view.replica_kind(lagging) if lagging else "",
    }


def _repository(asked: Asked, fqrn: str) -> dict[str, Any]:
    ledger = asked.site.ledger
    changes, published = rows.newest_changes(ledger, fqrn), rows.newest_published(ledger, fqrn)
    days = view.days_of(published, whole=len(published) < rows.PUBLISHED)
    points, collected = rows.revisions_over_time(ledger, fqrn), rows.newest_collections(ledger, fqrn)
    looks = looks_of(ledger, fqrn)
    configured = {replica.name for replica in asked.site.settings.repository(fqrn).replicas}
    head = asked.services.ask(f"head {fqrn}", lambda: stored_head(asked.site, fqrn, asked.now))
    ends = head.value.whitelist_ends if head.value else None
    return {
        "head": head,
        "whitelist_kind": view.whitelist_kind(ends, asked.now) if ends else "",
        "whitelist_left_s": (ends - asked.now).total_seconds() if ends else None,
        "newest": rows.newest_change(ledger, fqrn),
        "damaged": rows.damaged_objects(ledger, fqrn),
        "revisions": view.revisions_of(fqrn, changes, published, whole=len(changes) < rows.CHANGES),
        "revision_figure": view.revision_figure(points) if len(points) > 1 else None,
        "days": list(reversed(days)),
        "size_figure": view.size_figure(days) if days else None,
        "collections": collected[:10],
        "object_figure": view.object_figure(collected) if len(collected) > 1 else None,
        "tags": [(tag, run_of(tag.run_id)) for tag in rows.newest_tags(ledger, fqrn)],
        "replicas": [(look, view.replica_kind(look)) for look in looks if look.replica in configured],
        "not_seen": sorted(configured - {look.replica for look in looks}),
        "leases": open_leases(asked, fqrn),
    }


def stored_head(site: Site, fqrn: str, now: datetime) -> StoredHead:
    """Read the head of a repository from its store within seconds. Raises StoreError, and OSError for a public key."""
    store = site.repository_store(fqrn, quick=True)
    try:
        keys = [site.settings.repository(fqrn).public_key.read_bytes()]
        trusted = fetch_trusted(store, fqrn=fqrn, public_keys=keys, now=now)
    except CvmfsError as error:
        return StoredHead(invalid=str(error))
    manifest, whitelist = trusted.manifest, trusted.whitelist
    try:
        sums = _sums(site, fqrn, manifest.root) if manifest.root_size <= ROOT_BYTES else None
    except (CvmfsError, StoreError):
        sums = None
    return StoredHead(manifest, whitelist.expires if whitelist else None, sums)


@lru_cache(maxsize=64)
def _sums(site: Site, fqrn: str, root: ObjectHash) -> Counts:
    with closing(CatalogCache(site.repository_store(fqrn, quick=True)).open(root)) as catalog:
        return catalog.statistics.total
