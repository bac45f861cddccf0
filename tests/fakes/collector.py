"""A collector as small as the protocol allows, to test that with: it keeps the current revision and no other.

What no revision ever named it spares, as a real one does for a while. Each method is one step, so that a test can do
anything in between.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from include.cvmfs.commit.commit import read_head
from include.cvmfs.coordination.condemned import hashes_in, read_index, read_list, read_shard, store_list
from include.cvmfs.coordination.generation import CollectionPhase, CollectionStep, Generation, look, write
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.revision import Revision
from include.storage.store import Store, Version


class Collector:
    """``barrier`` returns when no commit can switch any more that looked at the document before."""

    def __init__(self, store: Store, fqrn: str, *, barrier: Callable[[], object], now: datetime) -> None:
        self._store = store
        self._fqrn = fqrn
        self._barrier = barrier
        self.now = now
        self._document = Generation(0, CollectionPhase.IDLE, now)
        self._version: Version | None = None
        self.condemned: frozenset[ObjectHash] = frozenset()

    def run(self) -> None:
        self.to_the_list()
        self.sweep()
        self.end()

    def begin(self) -> None:
        seen = look(self._store)
        self._document, self._version = seen.generation or self._document, seen.version
        self._move(CollectionStep.BEGIN)

    def mark(self) -> None:
        """Condemn every object that an earlier revision needed and the current one does not."""
        cache, every = CatalogCache(self._store), set[ObjectHash]()
        root = cache.open_nested("", self._manifest().root).previous_revision
        while root is not None and self._store.exists(root.with_suffix(CATALOG).key):
            every |= {name for name, _ in Revision(cache, root).objects_below("")}
            root = cache.open_nested("", root).previous_revision
        self.condemned = frozenset(every - self._needed())

    def condemn(self) -> None:
        self._move(CollectionStep.CONDEMN, condemned=store_list(self._store, self.condemned))

    def to_the_list(self) -> None:
        """A collection begins, and its list is out."""
        self.begin()
        self.mark()
        self.condemn()

    def sweep(self, *, at_most: int | None = None) -> None:
        """After the barrier, take off the list what newer revisions need, and delete the rest."""
        doomed = [one.key for one in read_list(self._store, self._list_to_sweep())]
        self._store.delete(doomed[:at_most])

    def sweep_shards(self, until: int) -> None:
        """As :meth:`sweep`, but only what is in the shards before ``until``; then these are said to be swept."""
        index = read_index(self._store, self._list_to_sweep())
        for number in range(self._document.swept, until):
            self._store.delete([one.key for one in hashes_in(read_shard(self._store, index, number))])
        self._move(CollectionStep.RENEW, swept=until)

    def end(self) -> None:
        self._move(CollectionStep.END)

    def _list_to_sweep(self) -> str:
        if self._document.phase is CollectionPhase.CONDEMNED:
            self._barrier()
            self.condemned -= self._needed()
            self._move(CollectionStep.SWEEP, condemned=store_list(self._store, self.condemned))
        assert self._document.condemned is not None
        return self._document.condemned

    def _move(self, step: CollectionStep, *, condemned: str | None = None, swept: int | None = None) -> None:
        self._document = self._document.after(step, self.now, condemned=condemned, swept=swept)
        self._version = write(self._store, self._document, expected=self._version)

    def _needed(self) -> set[ObjectHash]:
        tree = Revision(CatalogCache(self._store), self._manifest().root)
        return {name for name, _ in tree.objects_below("")}

    def _manifest(self) -> Manifest:
        return read_head(self._store, self._fqrn).manifest
