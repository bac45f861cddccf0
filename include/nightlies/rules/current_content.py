"""What is at a destination: a tree of its own, or a symbolic link of a partial build to the tree of another one."""

from __future__ import annotations

from dataclasses import dataclass

from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.paths import MOST_LINKS, link_target
from include.cvmfs.revision.revision import Revision


@dataclass(frozen=True, slots=True)
class CurrentTree:
    """The tree at a destination. `path`: where it really is, another one if a link leads there."""

    path: str
    reference: NestedRef

    @property
    def hash(self) -> str:
        return str(self.reference.hash)


def standing(tree: Revision, destination: str) -> CurrentTree | None:
    """The tree at a destination, links followed; None if there is none."""
    path = destination
    for _ in range(MOST_LINKS):
        reference = tree.nested_at(path)
        if reference is not None:
            return CurrentTree(path, reference)
        entry = tree.lookup(path)
        if entry is None or not entry.is_symlink:
            return None
        path = link_target(path, entry.symlink)
    return None
