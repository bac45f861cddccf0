"""Copy a tree of a revision to another place: its catalogs are rewritten, no data is sent.

Catalogs carry the paths of what is in them (docs/formats.md, catalogs), so a second place needs catalogs of its own.
Their revisions and times stay those of the first ones, so that the same tree at the same place has the same hash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from include.cvmfs.format.catalog import NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.counters import Counts, Statistics
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.layout import Layout


@dataclass(frozen=True, slots=True)
class Rebased:
    """A tree for its new place. ``reference``: what a parent must state of it; ``bytes``: of its catalogs, stored."""

    reference: NestedRef
    root_entry: Dirent
    statistics: Statistics
    catalogs: int
    bytes: int


def rebase(
    catalogs: CatalogCache, tree: NestedRef, path: str, keep: Callable[[PackedCatalog], None], *, layout: Layout
) -> Rebased:
    """Write the catalogs of ``tree`` for ``path``; ``keep`` is given each, those below before those above them.

    ``layout``: of the repository's root catalog; a tree that has another one takes it.

    Raises ObjectMissing, ObjectDamaged, CatalogError for what cannot be read.
    """
    catalog = catalogs.completed(catalogs.open_nested(tree.path, tree.hash))
    try:
        catalog.make_writable()
        if catalog.layout is not layout:
            catalog.convert(layout)
        below = [
            rebase(catalogs, nested, path + nested.path[len(tree.path) :], keep, layout=layout)
            for nested in catalog.nested()
        ]
        catalog.move_to(path)
        for child in below:
            catalog.set_nested(child.reference, Counts())
        if catalog.get_property("previous_revision") is not None:
            # it would name a catalog of the other place; stock tools write the null hash where there is none
            catalog.set_property("previous_revision", ObjectHash(bytes(20), tree.hash.algorithm))
        entry, statistics = catalog.root_entry, catalog.statistics
        packed = PackedCatalog.of(catalog.to_bytes(), tree.hash.algorithm)
    finally:
        catalog.close()
    keep(packed)
    return Rebased(
        NestedRef(path, packed.hash, packed.size),
        entry,
        statistics,
        1 + sum(child.catalogs for child in below),
        len(packed.data) + sum(child.bytes for child in below),
    )
