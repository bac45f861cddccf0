"""Rewrite catalogs of a revision and those above them, as another revision: the tree and its data objects stay.

The bytes of a rewritten nested catalog follow from the old one alone, so that a run that was killed finds again what it
stored. One reason to rewrite is here, their layout (docs/decisions, one layout of catalogs).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.cvmfs.commit.commit import Head, read_head, switch
from include.cvmfs.commit.edit import NewRoot
from include.cvmfs.commit.metadata_objects import store_all
from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import Look, require_unmoved
from include.cvmfs.errors import CollectionRunning
from include.cvmfs.format.catalog import Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash, identity
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.repository import ManifestVerifier
from include.storage.store import Store

_SENT_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A tree after rewriting. ``catalogs``: how many are new, and their ``bytes`` as SQLite files.

    ``mtime_ns``: entries that lost their nanoseconds; ``before``: the catalog of the tree's root, if it is new.
    """

    reference: NestedRef
    catalogs: int = 0
    bytes: int = 0
    mtime_ns: int = 0
    before: ObjectHash | None = None


@dataclass(eq=False)
class Rewriter(ABC):
    """Rewrites trees; what it did once it does not do again. ``keep`` is given each new catalog, children first.

    ``progress`` gets the number of catalogs that were read.
    """

    catalogs: CatalogCache
    keep: Callable[[PackedCatalog], None]
    progress: Callable[[int], None] = lambda _: None
    _done: dict[tuple[str, bytes], Rewritten] = field(init=False, default_factory=dict)

    def tree(self, reference: NestedRef, *, now: int | None = None) -> Rewritten:
        """The tree below a catalog. ``now`` (Unix s) is the time of the new one, which else keeps that of the old.

        Raises CatalogError for a catalog that cannot be rewritten, and what reading catalogs raises.
        """
        key = (reference.path, reference.hash.digest)
        if key not in self._done:
            self._done[key] = self._rewritten(reference, now)
            self.progress(len(self._done))
        return self._done[key]

    def replaced(self) -> dict[str, str]:
        """By the hash of each catalog that was rewritten, as text, that of the new one."""
        return {
            str(rewritten.before): str(rewritten.reference.hash)
            for rewritten in self._done.values()
            if rewritten.before is not None
        }

    @abstractmethod
    def _needs(self, catalog: Catalog, reference: NestedRef, below: Sequence[NestedRef]) -> bool:
        """Tell if a catalog is to be rewritten whatever is below it; ``below``: its nested catalogs, which are done."""

    @abstractmethod
    def _amend(self, catalog: Catalog, reference: NestedRef) -> int:
        """Change a catalog that is being rewritten; how many entries lose their nanoseconds by that."""

    def _rewritten(self, reference: NestedRef, now: int | None) -> Rewritten:
        catalog = self.catalogs.completed(self.catalogs.open_nested(reference.path, reference.hash))
        try:
            nested = catalog.nested()
            below = [self.tree(child) for child in nested]
            changed = [child for child in below if child.catalogs]
            if not self._needs(catalog, reference, nested) and not changed:
                return Rewritten(reference)
            catalog.make_writable()
            lost = self._amend(catalog, reference)
            for child in changed:
                catalog.set_nested(child.reference, Counts())
            catalog.set_property("previous_revision", reference.hash)
            catalog.set_property("revision", catalog.revision + 1)
            if now is not None:
                catalog.set_property("last_modified", now)
            database = catalog.to_bytes()
        finally:
            catalog.close()
        packed = PackedCatalog.of(database, reference.hash.algorithm)
        self.catalogs.remember(packed.hash, database)
        self.keep(packed)
        return Rewritten(
            NestedRef(reference.path, packed.hash, packed.size),
            1 + sum(child.catalogs for child in below),
            packed.size + sum(child.bytes for child in below),
            lost + sum(child.mtime_ns for child in below),
            reference.hash,
        )


class Unifier(Rewriter):
    """Brings catalogs to one layout. Raises CatalogError for columns in an order that is not known."""

    def __init__(
        self,
        catalogs: CatalogCache,
        layout: Layout,
        keep: Callable[[PackedCatalog], None],
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(catalogs, keep, progress)
        self.layout = layout

    def _needs(self, catalog: Catalog, reference: NestedRef, below: Sequence[NestedRef]) -> bool:  # noqa: ARG002
        return catalog.layout is not self.layout

    def _amend(self, catalog: Catalog, reference: NestedRef) -> int:  # noqa: ARG002
        return 0 if catalog.layout is self.layout else catalog.convert(self.layout)


class Sender:
    """Stores catalogs some at a time, but for those that are there: a run that was killed sent them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[PackedCatalog] = []
        self.hashes: list[ObjectHash] = []
        self.sent = 0

    def keep(self, packed: PackedCatalog) -> None:
        """Take a catalog; it is stored when :meth:`flush` returns."""
        self.hashes.append(packed.hash)
        self._waiting.append(packed)
        if len(self._waiting) >= _SENT_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Store what waits. Raises StoreError."""
        if not self._waiting:
            return
        absent = []
        for packed in self._waiting:
            stored = self._store.head(packed.hash.key)
            if stored is None or stored.size != len(packed.data):
                absent.append((packed.hash.key, packed.data))
        store_all(self._store, absent)
        self._store.flush()  # also what a run sent that was killed before it flushed
        self.sent += len(absent)
        self._waiting = []


def switch_rewritten(
    store: Store,
    fqrn: str,
    rewriter: Rewriter,
    sender: Sender,
    *,
    seen: Look,
    signer: Signer,
    now: int,
    voucher: ManifestVerifier | None = None,
    before_switch: Callable[[], None] = lambda: None,
) -> tuple[Head, Rewritten]:
    """Make a revision of what a rewriter makes of the current one; none if nothing is to be rewritten. ``now``: Unix s.

    ``sender`` is what the rewriter's catalogs go to; ``seen`` was looked up before the first of them. Raises
    ManifestConflict if another writer switched meanwhile, CollectionRunning and GenerationMoved beside a collection,
    CatalogError and ObjectError for a catalog that cannot be read; then nothing has changed for readers.
    """
    head = read_head(store, fqrn, voucher or ManifestVerifier(signer))
    done = rewriter.tree(NestedRef("", head.manifest.root, 0), now=now)
    sender.flush()
    if not done.catalogs:
        return head, done
    if seen.running_list and condemned_among(store, seen.running_list, [identity(hash_) for hash_ in sender.hashes]):
        what = f"rewritten catalogs are on the list of collection {seen.token}"
        raise CollectionRunning("/", what, number=seen.completed + 1, repository=fqrn)
    root = rewriter.catalogs.open_nested("", done.reference.hash)
    new = NewRoot(done.reference.hash, done.reference.size, root.revision, root.ttl, head.manifest.root, ())

    def barrier() -> None:
        require_unmoved(store, seen.token, fqrn=fqrn, hint="run it again")
        before_switch()

    return switch(store, head, new, signer=signer, now=now, before_switch=barrier), done
