"""Destinations before they are published to: what is missing above them, what is in their way, what is reserved.

Nothing here writes, so that a dry run reports the same as a real one.
"""

from __future__ import annotations

from collections.abc import Sequence

from include.cvmfs.errors import BaseChanged, DestinationError, ObjectMissing
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.paths import ancestors, parent_of
from include.cvmfs.format.schema import Counts
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.revision.revision import Revision

_RESERVED = Counts(regular=1, dir=1)  # a reserved destination: its own directory and the catalog's marker


def missing_directories(view: Revision, destinations: Sequence[str]) -> list[str]:
    """The destinations and directories above them that are absent, parents first.

    Raises DestinationError where a file or a plain directory is in the way, and for a destination inside another.
    """
    _require_apart(destinations)
    missing: dict[str, None] = {}
    for destination in destinations:
        for path in ancestors(destination):
            if path in missing or parent_of(path) in missing:
                missing[path] = None
                continue
            entry = view.lookup(path)
            if entry is None:
                missing[path] = None
            elif not entry.is_directory:
                raise DestinationError(
                    destination, f"{path} is a {entry.kind}; remove it or choose another destination"
                )
            elif path == destination and not entry.mountpoint:
                raise DestinationError(path, "a directory that is no nested catalog is there; remove it first")
    return list(missing)


def is_reserved(view: Revision, path: str) -> bool:
    """Whether an empty nested catalog is at the path."""
    return view.nested_at(path) is not None and view.inside(path).statistics.total == _RESERVED


def is_tree(there: NestedRef | None, root: ObjectHash) -> bool:
    """Whether a nested catalog is that of the tree ``root``."""
    return there is not None and there.hash.digest == root.digest


def is_free(view: Revision, path: str, root: ObjectHash) -> bool:
    """Whether the tree ``root`` may be put there without replacing anything."""
    there = view.nested_at(path)
    return there is None or is_tree(there, root) or is_reserved(view, path)


def is_derived_from(catalogs: CatalogCache, changeset: Changeset, there: NestedRef) -> bool:
    """Whether a changeset was derived from this very tree. Raises BaseChanged if its base was collected."""
    path, base = changeset.destination, changeset.base_root
    try:
        return base is not None and is_tree(Revision(catalogs, base, sizes=True).nested_at(path), there.hash)
    except ObjectMissing:
        raise BaseChanged(path, f"revision {base} that this was derived from was collected; derive again") from None


def occupied(path: str) -> DestinationError:
    """What is said of a destination that is not free when replacing was not asked for."""
    return DestinationError(
        path, "holds something already, and replacing was not asked for; ask for it, or choose another destination"
    )


def _require_apart(destinations: Sequence[str]) -> None:
    """A destination inside another would go with all that is published there when the outer one is swapped."""
    apart = set(destinations)
    for destination in destinations:
        for above in ancestors(parent_of(destination)):
            if above in apart:
                raise DestinationError(destination, f"lies inside the destination {above}; keep them apart")
