"""*Repositories*: revisions, sizes, what was reused, tags, leases, collections, whitelist and replicas of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, func, select

from include.cvmfs.errors import CatalogError, CvmfsError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.repository import fetch_trusted
from include.ledger.engine import Bind, reading
from include.nightlies.records.links import TAG, LinkRecord
from include.nightlies.records.tables import collections, damaged, links, publications
from include.nightlies.rules.publication import State
from include.pages import repositories_view as view
from include.pages.asked import Asked
from include.pages.provenance import open_leases
from include.pages.registry import night, repository, run_of
from include.pages.repositories_view import CollectionRow
from include.provenance.records import provenance
from include.replicas.look import looks_of
from include.site.site import Site
from include.storage.errors import StoreError

CHANGES = 300
"""So many of the newest changes of paths are read for the table of revisions."""
POINTS = 400
"""Revisions of the plot at most, evenly spaced over all."""
PUBLISHED = 2000
"""So many of the newest published artifacts are read for what was reused."""
SIZES, SIZES_KEPT_S = 40, 600.0
"""Revisions of which the size is read from the store at most, and for how many seconds they are kept."""
COLLECTIONS = 60
LINKS = 20_000
"""So many of the newest decisions about links and tags are searched for tags of the repository."""
TAGS = 50


def newest_change(bind: Bind, fqrn: str) -> tuple[int, datetime] | None:
    """The newest revision that was published through Nightshift, and when."""
    query = (
        select(provenance.c.revision, provenance.c.published_at)
        .where(provenance.c.repository == fqrn)
        .order_by(provenance.c.revision.desc())
        .limit(1)
    )
    with reading(bind) as connection:
        row = connection.execute(query).first()
    return None if row is None else (row.revision, row.published_at)


def newest_changes(bind: Bind, fqrn: str, *, limit: int = CHANGES) -> Sequence[Row[Any]]:
    """Changes of paths, those of the newest revision first."""
    names = ("revision", "path", "kind", "run_id", "holder", "published_at")
    query = (
        select(*(provenance.c[name] for name in names))
        .where(provenance.c.repository == fqrn)
        .order_by(provenance.c.revision.desc(), provenance.c.id.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return connection.execute(query).all()


def revisions_over_time(bind: Bind, fqrn: str, *, points: int = POINTS) -> list[tuple[datetime, int]]:
    """Revisions with their times, evenly spaced from the first to the newest, the oldest first."""
    of_repository, revision = provenance.c.repository == fqrn, provenance.c.revision
    with reading(bind) as connection:
        # two queries: each is one look into the index
        first = connection.scalar(select(func.min(revision)).where(of_repository))
        last = connection.scalar(select(func.max(revision)).where(of_repository))
        if first is None or last is None:
            return []
        step = max(1, -(-(last - first + 1) // points))
        at = func.min(provenance.c.published_at).label("at")
        chosen = select(revision, at).where(of_repository, revision.in_(range(last, first - 1, -step)))
        rows = connection.execute(chosen.group_by(revision)).all()
    return sorted((row.at, row.revision) for row in rows)


def roots_over_time(bind: Bind, fqrn: str, *, limit: int = SIZES) -> list[tuple[datetime, int, ObjectHash]]:
    """Revisions with the root catalog that the ledger has of them, evenly spaced over all, the oldest first."""
    numbers = [revision for _, revision in revisions_over_time(bind, fqrn)]
    spaced = sorted({numbers[-1 - place] for place in range(0, len(numbers), -(-len(numbers) // limit) or 1)})
    columns = (provenance.c.revision, provenance.c.root_hash, func.min(provenance.c.published_at).label("at"))
    query = select(*columns).where(
        provenance.c.repository == fqrn, provenance.c.revision.in_(spaced), provenance.c.root_hash.is_not(None)
    )
    with reading(bind) as connection:
        rows = connection.execute(query.group_by(provenance.c.revision, provenance.c.root_hash)).all()
    return sorted((row.at, row.revision, ObjectHash.parse(row.root_hash, suffix=CATALOG)) for row in rows)


def newest_published(bind: Bind, fqrn: str, *, limit: int = PUBLISHED) -> Sequence[Row[Any]]:
    """Figures of what was published last, the newest first."""
    names = ("revision_after", "files", "bytes", "bytes_uploaded", "objects_new", "objects_reused", "updated_at")
    query = (
        select(*(publications.c[name] for name in names))
        .where(publications.c.repository == fqrn, publications.c.state == State.PUBLISHED.value)
        .order_by(publications.c.id.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return connection.execute(query).all()


def newest_tags(bind: Bind, fqrn: str) -> list[LinkRecord]:
    """Return the last decision about each tag, the newest first."""
    with reading(bind) as connection:
        newest = connection.scalar(select(func.max(links.c.id))) or 0
        query = (
            select(links)
            .where(links.c.id > newest - LINKS, links.c.kind == TAG, links.c.repository == fqrn)
            .order_by(links.c.id.desc())
            .limit(TAGS)
        )
        rows = connection.execute(query).mappings().all()
    tags: dict[str, LinkRecord] = {}
    for row in rows:
        tags.setdefault(row["path"], LinkRecord(**{name: row[name] for name in LinkRecord.__slots__}))
    return list(tags.values())


def newest_collections(bind: Bind, fqrn: str, *, limit: int = COLLECTIONS) -> list[CollectionRow]:
    """Collections of a repository, the tags first."""
    query = (
        select(*(collections.c[name] for name in CollectionRow.__slots__))
        .where(collections.c.repository == fqrn)
        .order_by(collections.c.ended_at.desc())
        .limit(limit)
    )
    with reading(bind) as connection:
        return [CollectionRow(**row) for row in connection.execute(query).mappings()]


def damaged_objects(bind: Bind, fqrn: str) -> int:
    """Return the number of objects that the repository needs and its store lost."""
    with reading(bind) as connection:
        return connection.scalar(select(func.count()).where(damaged.c.repository == fqrn)) or 0


EVERY_S = 20
ROOT_BYTES = 4 << 20
"""The largest root catalog that is read for the sums over a whole repository, in bytes."""


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The head in the store. `invalid`: why its manifest cannot be trusted; `whitelist_ends`: None without keys.

    `sums`: over the whole repository; None where the root catalog is too large, or cannot be read.
    """

    manifest: Manifest | None = None
    whitelist_ends: datetime | None = None
    sums: Counts | None = None
    invalid: str | None = None


def read(asked: Asked) -> dict[str, Any]:
    """All repositories; with `repository`, or where there is only one, that one."""
    repositories = asked.site.settings.repositories
    fqrn = asked.choice("repository", repositories)
    if fqrn is None and len(repositories) == 1:
        fqrn = next(iter(repositories))
    shared = {
        "repositories": sorted(repositories),
        "repository": fqrn,
        "every": EVERY_S,
        "night_url": night,
        "repository_url": repository,
    }
    if fqrn is None:
        return shared | {"details": None, "all": [_short(asked, name) for name in sorted(repositories)]}
    return shared | {"details": _repository(asked, fqrn)}


def _short(asked: Asked, fqrn: str) -> dict[str, Any]:
    """Return a repository for the list of all, from the ledger alone."""
    ledger = asked.site.ledger
    lagging = view.worst(looks_of(ledger, fqrn))
    return {
        "name": fqrn,
        "url": repository(fqrn),
        "newest": newest_change(ledger, fqrn),
        "collection": next(iter(newest_collections(ledger, fqrn, limit=1)), None),
        "damaged": damaged_objects(ledger, fqrn),
        "replica": lagging,
        "replica_kind": view.replica_kind(lagging) if lagging else "",
    }


def _repository(asked: Asked, fqrn: str) -> dict[str, Any]:
    ledger = asked.site.ledger
    changes, published = newest_changes(ledger, fqrn), newest_published(ledger, fqrn)
    days = view.days_of(published, whole=len(published) < PUBLISHED)
    points, collected = revisions_over_time(ledger, fqrn), newest_collections(ledger, fqrn)
    looks = looks_of(ledger, fqrn)
    configured = {replica.name for replica in asked.site.settings.repository(fqrn).replicas}
    head = asked.services.ask(f"head {fqrn}", lambda: stored_head(asked.site, fqrn, asked.now))
    ends = head.value.whitelist_ends if head.value else None
    grown = asked.services.ask(
        f"sizes {fqrn}",
        lambda: asked.remembered(("sizes", fqrn), lambda: sizes_over_time(asked.site, fqrn), kept_s=SIZES_KEPT_S),
    )
    sizes = grown.value or []
    return {
        "head": head,
        "whitelist_kind": view.whitelist_kind(ends, asked.now) if ends else "",
        "whitelist_left_s": (ends - asked.now).total_seconds() if ends else None,
        "newest": newest_change(ledger, fqrn),
        "damaged": damaged_objects(ledger, fqrn),
        "revisions": view.revisions_of(fqrn, changes, published, whole=len(changes) < CHANGES),
        "revision_figure": view.revision_figure(points) if len(points) > 1 else None,
        "sizes": sizes[::-1],
        "growth_figure": view.growth_figure(sizes, collected) if len(sizes) > 1 else None,
        "growth_fault": grown.fault,
        "days": list(reversed(days)),
        "size_figure": view.size_figure(days) if days else None,
        "collections": collected[:10],
        "object_figure": view.object_figure(collected) if len(collected) > 1 else None,
        "tags": [(tag, run_of(tag.run_id)) for tag in newest_tags(ledger, fqrn)],
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


def sizes_over_time(site: Site, fqrn: str) -> list[view.RevisionSize]:
    """Read the sizes of revisions from their root catalogs, the oldest first. Raises StoreError.

    A root catalog that a collection has deleted, or that is too large to be read for a page, is left out.
    """
    sizes = []
    for at, revision, root in roots_over_time(site.ledger, fqrn):
        try:
            sums = _sums(site, fqrn, root)
        except CvmfsError:
            continue
        sizes.append(view.RevisionSize(at, revision, sums.regular, sums.file_size, sums.nested + 1))
    return sizes


@lru_cache(maxsize=2048)
def _sums(site: Site, fqrn: str, root: ObjectHash) -> Counts:
    store = site.repository_store(fqrn, quick=True)
    stored = store.head(root.with_suffix(CATALOG).key)
    if stored is not None and stored.size > ROOT_BYTES:
        raise CatalogError("", f"the root catalog {root} is too large to be read for a page")
    with closing(CatalogCache(store).open(root)) as catalog:
        return catalog.statistics.total
