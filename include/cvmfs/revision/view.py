"""One revision seen as one tree: finds the catalog that holds a path, whatever catalogs it is cut into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalog import Catalog, NestedRef, parent_of
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.counters import Counts
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import ObjectHash


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


def ancestors(path: str) -> Iterator[str]:
    """``/a/b/c`` gives ``/a``, ``/a/b``, ``/a/b/c``; the root gives nothing."""
    place = path.find("/", 1)
    while place > 0:
        yield path[:place]
        place = path.find("/", place + 1)
    if path:
        yield path


def is_below(path: str, top: str) -> bool:
    """Whether ``path`` is ``top`` or lies below it, by components."""
    return path == top or path.startswith(f"{top}/")


class View:
    """A revision by its root hash, read on demand. Not for several threads at once."""

    _is_fixed = True  # nothing changes where catalogs begin

    def __init__(self, catalogs: CatalogCache, root: ObjectHash) -> None:
        self.catalogs = catalogs
        self.root_hash = root
        catalog = self._opened(catalogs.open_nested("", root))
        self._nodes: dict[str, OpenCatalog] = {"": OpenCatalog(catalog, None, catalog.statistics.total)}
        self._inside: dict[str, OpenCatalog] = {}  # which directory lies in which catalog, once that was found out

    @property
    def root(self) -> OpenCatalog:
        return self._nodes[""]

    def close(self) -> None:
        """Let go of the opened catalogs."""
        for node in self._nodes.values():
            node.catalog.close()

    def hash_of(self, node: OpenCatalog) -> ObjectHash:
        """Which catalog a node of this view was opened from."""
        if node.parent is None:
            return self.root_hash
        reference = node.parent.catalog.nested_at(node.path)
        if reference is None:
            raise CatalogError(node.path, "a catalog without a reference to it")
        return reference.hash

    def lookup(self, path: str) -> Dirent | None:
        """The entry at an absolute path (``""`` is the root); a mountpoint's row of the parent catalog."""
        return self.holder(path).catalog.lookup(path)

    def listing(self, path: str) -> list[Dirent]:
        """The entries of a directory in name order, wherever their catalog begins."""
        return self.inside(path).catalog.listing(path)

    def chunks(self, path: str, entry: Dirent) -> tuple[Chunk, ...]:
        return self.holder(path).catalog.chunks(path, entry) if entry.chunked else ()

    def nested_at(self, path: str) -> NestedRef | None:
        """The reference to the catalog mounted exactly at ``path``, if one is."""
        return self.holder(path).catalog.nested_at(path) if path else None

    def bind_at(self, path: str) -> NestedRef | None:
        """The catalog that the bind mountpoint at ``path`` shows, if one is there."""
        entry = self.lookup(path)
        return self.holder(path).catalog.bind_at(path) if entry is not None and entry.bind else None

    def holder(self, path: str) -> OpenCatalog:
        """The node whose catalog has the row of ``path`` among its parent's rows."""
        return self.inside(parent_of(path)) if path else self.root

    def inside(self, path: str) -> OpenCatalog:
        """The node whose catalog has the rows of what stands *in* the directory ``path``."""
        if (known := self._nodes.get(path) or self._inside.get(path)) is not None:
            return known
        node = self.root
        for step in ancestors(path):
            if (opened := self._nodes.get(step)) is not None:
                node = opened
            elif (reference := node.catalog.nested_at(step)) is not None:
                node = self._open(reference, node)
        if self._is_fixed:
            self._inside[path] = node
        return node

    def _open(self, reference: NestedRef, parent: OpenCatalog) -> OpenCatalog:
        catalog = self._opened(self.catalogs.open_nested(reference.path, reference.hash))
        if reference.size and len(self.catalogs.database(reference.hash)) != reference.size:
            raise CatalogError(
                reference.path, f"the nested catalog is not of the {reference.size} bytes recorded above it"
            )
        node = OpenCatalog(catalog, parent, catalog.statistics.total)
        self._nodes[reference.path] = node
        return node

    def _opened(self, catalog: Catalog) -> Catalog:
        """Whatever is to be done to a catalog before its counters are relied on."""
        return catalog
