"""What a subtree of a revision needs, as identities: read once, catalog by catalog, with little of it in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from include.cvmfs.errors import CatalogError, CvmfsError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.digests import DigestSet, identity
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.paths import is_below
from include.cvmfs.revision.revision import Revision

_AHEAD = 8  # catalogs that are fetched at once


def known_objects(revision: Revision, paths: Iterable[str]) -> DigestSet:
    """The identities of everything that the revision holds there.

    Only what a revision names is safe to rely on: a collection never takes it. What cannot be read is left out.
    """
    found = DigestSet()
    for path in paths:
        try:
            if revision.lookup(path) is not None:
                add_identities(revision, path, found)
        except CvmfsError:
            continue  # damage elsewhere is for the check to report; here it only costs a request to the store
    return found


def added_objects(catalogs: CatalogCache, current: ObjectHash, new: ObjectHash, path: str) -> DigestSet:
    """The identities of what the revision ``new`` needs at ``path`` and below, and ``current`` does not name there.

    Catalogs are compared place by place, and those that both have are not read. What lies beside ``path`` in a catalog
    above it counts as well. Raises what reading catalogs raises.
    """
    found, before = DigestSet(), Revision(catalogs, current)
    pending = [NestedRef("", new, 0)]
    while pending:
        reference = pending.pop()
        there = before.nested_at(reference.path) if reference.path else NestedRef("", current, 0)
        if there is not None and there.hash.digest == reference.hash.digest:
            continue
        catalog = catalogs.open_nested(reference.path, reference.hash)
        named = set(catalog.identities())
        if there is not None:
            named.difference_update(before.catalog_at(reference.path).identities())
        if is_below(reference.path, path):
            named.add(identity(reference.hash.with_suffix(CATALOG)))
        for object_id in named:
            found.add(object_id)
        pending += [nested for nested in catalog.nested() if is_below(nested.path, path) or is_below(path, nested.path)]
        catalog.close()
    before.close()
    return found


def add_identities(tree: Revision, path: str, found: DigestSet) -> None:
    """Add every object that the entry at ``path`` and all below it need: contents, pieces, catalogs.

    Raises what reading catalogs raises; what was found until then stays in ``found``.
    """
    top = tree.nested_at(path)
    if top is None:
        for name, _ in tree.objects_below(path):
            found.add(identity(name))
        return
    catalogs = CatalogCache(tree.catalogs.store, budget=0)  # each is read once
    pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="known")
    try:
        waiting = [top]
        fetched: deque[tuple[NestedRef, Future[bytes]]] = deque()
        while waiting or fetched:
            while waiting and len(fetched) < _AHEAD:
                reference = waiting.pop()
                fetched.append((reference, pool.submit(catalogs.database, reference.hash)))
            reference, database = fetched.popleft()
            waiting += _add_catalog(reference, database.result(), found)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _add_catalog(reference: NestedRef, database: bytes, found: DigestSet) -> list[NestedRef]:
    catalog = Catalog.load(database)
    if catalog.path != reference.path:
        raise CatalogError(
            reference.path, f"the catalog {reference.hash} mounted here was made for {catalog.path or '/'}"
        )
    found.add(identity(reference.hash.with_suffix(CATALOG)))
    for object_id in catalog.identities():
        found.add(object_id)
    below = catalog.nested()
    catalog.close()
    return below
