"""The changeset of a tree that a partial build takes from another one: catalogs for its new place, no data sent."""

from __future__ import annotations

import logging
from datetime import datetime

from include.cvmfs.commit.metadata_objects import store_all
from include.cvmfs.commit.rebase import rebase
from include.cvmfs.coordination.generation import Look
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.revision.repository import Repository
from include.nightlies.steps.values import Item
from include.publishers.capabilities import Operation
from include.publishers.errors import NotSupported
from include.settings.model import PublisherKind
from include.site.site import Site

log = logging.getLogger(__name__)


def rebased_changeset(
    site: Site, repository: Repository, seen: Look, item: Item, *, now: datetime, dry_run: bool
) -> Changeset:
    """Write the catalogs of the tree at ``item.inherits`` for the item's destination, and store them.

    ``seen`` was looked up before ``repository`` was opened. Raises DestinationError if the tree is gone, NotSupported
    for a repository with a publisher node, and what reading catalogs and storing raise.
    """
    fqrn, source = repository.fqrn, item.inherits or ""
    require_native(site, fqrn, item.destination)
    there = repository.revision.nested_at(source)
    if there is None:
        raise DestinationError(source, f"the source tree no longer exists; {item.name} cannot be inherited from it")
    packed: list[tuple[str, bytes]] = []

    def keep(catalog: PackedCatalog) -> None:
        packed.append((catalog.hash.key, catalog.data))

    layout = repository.revision.root.layout
    tree = rebase(repository.catalogs, there, item.destination, keep, layout=layout)
    if not dry_run:
        store_all(site.repository_store(fqrn), packed)
    return Changeset(
        repository=fqrn,
        destination=item.destination,
        root=tree.reference.hash,
        root_size=tree.reference.size,
        root_entry=tree.root_entry,
        statistics=tree.statistics,
        catalogs=tree.catalogs,
        objects_new=tree.catalogs,
        objects_reused=tree.statistics.total.regular,
        bytes_uploaded=tree.bytes,
        source=source,
        created=now,
        source_sha256=item.sha256,
        base_root=repository.manifest.root,
        base_revision=repository.manifest.revision,
        generation=seen.completed,
        swept=seen.swept,
        notes=(f"inherited from {source}, by its catalogs alone",),
        stored=not dry_run,
    )


def require_native(site: Site, fqrn: str, path: str) -> None:
    """Raises NotSupported where catalogs cannot be written by us, before anything is done."""
    if site.settings.repository(fqrn).publisher is PublisherKind.CVMFS_SERVER:
        what = f"{path}: {Operation.RENAME.value}: cvmfs_server works on files and knows no catalogs"
        raise NotSupported(fqrn, f"{what}; use publisher: native, or let the index list all artifacts", path=path)
