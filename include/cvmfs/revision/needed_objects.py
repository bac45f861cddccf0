"""Objects that a subtree of a revision needs, and the known roots that it comes from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from include.cvmfs.errors import CatalogError, CvmfsError, ObjectError, UnknownBase
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, DigestSet, ObjectHash, identity
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.paths import is_below
from include.cvmfs.revision.revision import Revision

STEPS = 2000  # revisions that one question may lead back through
REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class KnownRoot:
    """A root and its revision."""

    root: ObjectHash
    number: int


def back_from(catalogs: CatalogCache, root: ObjectHash) -> Iterator[KnownRoot]:
    """A revision and those before it, the newest first, as far back as their root catalogs can be read."""
    at: ObjectHash | None = root
    while at is not None:
        try:
            catalog = catalogs.open_nested("", at)
        except ObjectError:
            return  # collected, or lost
        revision, at = KnownRoot(at, catalog.revision), catalog.previous_revision
        catalog.close()
        yield revision


class Lineage:
    """The revisions of one repository that are known. Not for several threads at once.

    ``known``: what an earlier process had found out, in any order.
    """

    def __init__(self, catalogs: CatalogCache, known: Iterable[KnownRoot] = ()) -> None:
        self._catalogs = catalogs
        ordered = sorted(known, key=lambda revision: revision.number)
        self._known: dict[bytes, KnownRoot] = {revision.root.digest: revision for revision in ordered}
        self._oldest = ordered[0] if ordered else None
        self._newest = ordered[-1] if ordered else None
        self._learnt: list[KnownRoot] = []

    def require(self, root: ObjectHash, head: Manifest, in_reflog: Callable[[ObjectHash], bool]) -> None:
        """Raises UnknownBase unless ``root`` is the current revision's or that of one before it; what reading raises.

        ``in_reflog`` is asked first: what the reflog does not name has never been a revision, or was collected.
        """
        if root.digest == head.root.digest:
            return
        self._catch_up(KnownRoot(head.root, head.revision))
        if root.digest in self._known:
            return
        if in_reflog(root):
            self._walk_to(self._catalogs.open(root).revision)
            if root.digest in self._known:
                return
        raise UnknownBase(
            head.fqrn,
            f"{root} is the root of no revision, or of one long past; derive the change from the current revision",
        )

    def add(self, head: Manifest) -> None:
        """A revision that was made just now."""
        self._catch_up(KnownRoot(head.root, head.revision))

    def learnt(self) -> list[KnownRoot]:
        """Return what became known since this was last asked."""
        learnt, self._learnt = self._learnt, []
        return learnt

    def _catch_up(self, head: KnownRoot) -> None:
        """From the current revision back to one that is known."""
        if head.root.digest in self._known:
            return
        newest, at = self._newest, head
        self._remember(head)
        self._newest = head
        if newest is None:
            self._oldest = head
            return
        for _ in range(STEPS):
            before = self._before(at)
            if before is None or before.root.digest in self._known:
                break
            self._remember(before)
            at = before
        if len(self._known) > REMEMBERED + STEPS:
            for digest in list(islice(self._known, STEPS)):
                del self._known[digest]

    def _walk_to(self, number: int) -> None:
        """From the oldest known revision back to the one of this number."""
        for _ in range(STEPS):
            if self._oldest is None or self._oldest.number <= number:
                return
            before = self._before(self._oldest)
            if before is None:
                return
            self._remember(before)
            self._oldest = before

    def _before(self, revision: KnownRoot) -> KnownRoot | None:
        try:
            root = self._catalogs.open(revision.root).previous_revision
            return None if root is None else KnownRoot(root, self._catalogs.open(root).revision)
        except ObjectError:
            return None  # collected, or lost

    def _remember(self, revision: KnownRoot) -> None:
        self._known[revision.root.digest] = revision
        self._learnt.append(revision)


_AHEAD = 8  # catalogs that are fetched at once


def known_objects(revision: Revision, paths: Iterable[str]) -> DigestSet:
    """The identities of everything that the revision holds there.

    Only what a revision names is safe to rely on: a collection never takes it. What cannot be read is left out.
    """
    objects = DigestSet()
    for path in paths:
        try:
            if revision.lookup(path) is not None:
                add_identities(revision, path, objects)
        except CvmfsError:
            continue  # damage elsewhere is for the check to report; here it only costs a request to the store
    return objects


def added_objects(catalogs: CatalogCache, current: ObjectHash, new: ObjectHash, path: str) -> DigestSet:
    """The identities of what the revision ``new`` needs at ``path`` and below, and ``current`` does not name there.

    Catalogs are compared place by place, and those that both have are not read. What lies beside ``path`` in a catalog
    above it counts as well. Raises what reading catalogs raises.
    """
    objects, before = DigestSet(), Revision(catalogs, current)
    pending = [NestedRef("", new, 0)]
    while pending:
        reference = pending.pop()
        earlier = before.nested_at(reference.path) if reference.path else NestedRef("", current, 0)
        if earlier is not None and earlier.hash.digest == reference.hash.digest:
            continue
        catalog = catalogs.open_nested(reference.path, reference.hash)
        named = set(catalog.identities())
        if earlier is not None:
            named.difference_update(before.catalog_at(reference.path).identities())
        if is_below(reference.path, path):
            named.add(identity(reference.hash.with_suffix(CATALOG)))
        for object_id in named:
            objects.add(object_id)
        pending += [nested for nested in catalog.nested() if is_below(nested.path, path) or is_below(path, nested.path)]
        catalog.close()
    before.close()
    return objects


def add_identities(tree: Revision, path: str, objects: DigestSet) -> None:
    """Add every object that the entry at ``path`` and all below it need: contents, pieces, catalogs.

    Raises what reading catalogs raises; what was found until then stays in ``objects``.
    """
    top = tree.nested_at(path)
    if top is None:
        for name, _ in tree.objects_below(path):
            objects.add(identity(name))
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
            waiting += _add_catalog(reference, database.result(), objects)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _add_catalog(reference: NestedRef, database: bytes, objects: DigestSet) -> list[NestedRef]:
    catalog = Catalog.load(database)
    if catalog.path != reference.path:
        raise CatalogError(
            reference.path, f"the catalog {reference.hash} mounted here was made for {catalog.path or '/'}"
        )
    objects.add(identity(reference.hash.with_suffix(CATALOG)))
    for object_id in catalog.identities():
        objects.add(object_id)
    below = catalog.nested()
    catalog.close()
    return below
