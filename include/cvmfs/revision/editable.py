"""One revision whose catalogs are changed in place: each opened one with its counters as the catalog above has them."""

from __future__ import annotations

from dataclasses import dataclass

from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.counters import Counts
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.paths import ancestors, parent_of
from include.cvmfs.revision.revision import Revision, require_size


@dataclass(slots=True)
class OpenCatalog:
    """An opened catalog in its place: the node above, and its counters (self and below) as the parent knows them."""

    catalog: Catalog
    parent: OpenCatalog | None
    known: Counts
    dirty: bool = False

    @property
    def path(self) -> str:
        return self.catalog.path


class EditableRevision(Revision):
    """Reads what was changed, with catalogs of its own. Not for several threads at once.

    References to nested catalogs are the ones of before until the change is finished.
    """

    def __init__(self, catalogs: CatalogCache, root: ObjectHash) -> None:
        super().__init__(catalogs, root)
        catalog = self._opened_at("", root)
        self._nodes: dict[str, OpenCatalog] = {"": OpenCatalog(catalog, None, catalog.statistics.total)}
        self._within: dict[str, OpenCatalog] = {}  # by directory; emptied when it changes where catalogs begin

    def close(self) -> None:
        """Let go of the opened catalogs."""
        for node in self._nodes.values():
            node.catalog.close()

    def inside(self, path: str) -> Catalog:
        return self._node_inside(path).catalog

    def _open(self, reference: NestedRef) -> Catalog:
        return self._node_inside(reference.path).catalog

    @property
    def _root(self) -> OpenCatalog:
        return self._nodes[""]

    def _holder(self, path: str) -> OpenCatalog:
        """The node whose catalog has the row of ``path``."""
        return self._node_inside(parent_of(path)) if path else self._root

    def _node_inside(self, path: str) -> OpenCatalog:
        """The node whose catalog has the rows of what is in the directory ``path``."""
        if (known := self._nodes.get(path) or self._within.get(path)) is not None:
            return known
        node = self._root
        for step in ancestors(path):
            if (opened := self._nodes.get(step)) is not None:
                node = opened
            elif (reference := node.catalog.nested_at(step)) is not None:
                node = self._open_node(reference, node)
        self._within[path] = node
        return node

    def _open_node(self, reference: NestedRef, parent: OpenCatalog) -> OpenCatalog:
        catalog = self._opened_at(reference.path, reference.hash)
        require_size(reference, catalog)
        node = self._nodes[reference.path] = OpenCatalog(catalog, parent, catalog.statistics.total)
        return node

    def _opened_at(self, path: str, name: ObjectHash) -> Catalog:
        # Before anything is added to them: what an older revision does not count would be counted twice.
        return self.catalogs.completed(self.catalogs.open_nested(path, name))
