"""Three-way merge: what a change did to its base, inside the leased path, is done to the current revision.

Where both sides have a nested catalog at one place, it is swapped whole and not walked, so the cost does not grow
with the tree. A place that is no longer as the base had it is refused, never reverted; a place that already is as the
change wants it is left alone, so a commit that is repeated finds nothing to do.
"""

from __future__ import annotations

from include.cvmfs.catalogs import CatalogCache
from include.cvmfs.dirent import Dirent
from include.cvmfs.edit import Edit
from include.cvmfs.errors import BaseChanged, MergeError
from include.cvmfs.hashes import ObjectHash
from include.cvmfs.view import View, is_below


def merge(catalogs: CatalogCache, *, base: ObjectHash, new: ObjectHash, current: ObjectHash, lease_path: str) -> Edit:
    """Apply the change ``base`` -> ``new`` to ``current``; ``lease_path`` is absolute, ``""`` for the whole repository.

    The returned edit says whether anything ``changed``. Raises MergeError for a change outside of the lease,
    BaseChanged when ``current`` differs from ``base`` where the change applies, ObjectMissing for an unknown root.
    """
    edit = Edit(catalogs, current)
    if base.digest != new.digest:
        _Merge(View(catalogs, base), View(catalogs, new), edit, lease_path).directory("")
    return edit


class _Merge:
    def __init__(self, base: View, new: View, edit: Edit, lease: str) -> None:
        self.base, self.new, self.edit, self.lease = base, new, edit, lease
        self._groups: dict[tuple[str, int], int] = {}

    def directory(self, path: str) -> None:
        """Merge what stands in a directory that exists on both sides."""
        before = {entry.name: entry for entry in self.base.listing(path)}
        after = {entry.name: entry for entry in self.new.listing(path)}
        for name in sorted(before.keys() | after.keys()):
            self._entry(f"{path}/{name}", before.get(name), after.get(name))

    def _entry(self, path: str, old: Dirent | None, new: Dirent | None) -> None:
        if is_below(path, self.lease):
            self._leased(path, old, new)
        elif is_below(self.lease, path):
            self._above(path, old, new)
        elif old != new or not self._same_nested(path, old, new):
            raise MergeError(path, f"changed, but the lease is on {self.lease or '/'}; only that may change")

    def _above(self, path: str, old: Dirent | None, new: Dirent | None) -> None:
        if old is None or new is None or not (old.is_directory and new.is_directory):
            raise MergeError(path, f"is above the leased {self.lease} and must be a directory before and after")
        if old.mountpoint and new.mountpoint and self._same_nested(path, old, new):
            return
        self.directory(path)

    def _leased(self, path: str, old: Dirent | None, new: Dirent | None) -> None:
        if old == new and self._same_nested(path, old, new):
            if old is not None and old.is_directory and not old.mountpoint:
                self.directory(path)
            return
        here = self.edit.lookup(path)
        if self._is(path, here, self.new, new):
            if new is not None and new.is_directory and not new.mountpoint and old is not None and old.is_directory:
                self.directory(path)
            return
        if not self._is(path, here, self.base, old):
            raise BaseChanged(path, "another publication changed it since; take its result as the base and try again")
        if old is not None and new is not None and _plain_directory(old) and _plain_directory(new):
            self.edit.touch(path, new)
            self.directory(path)
        elif old is not None and new is not None and old.mountpoint and new.mountpoint:
            self._hang(path, new)
        else:
            if old is not None:
                self.edit.remove(path)
            if new is not None:
                self._add(path, new)

    def _add(self, path: str, entry: Dirent) -> None:
        if entry.mountpoint:
            self._hang(path, entry)
            return
        if entry.hardlink_group:
            entry = entry.changed(hardlink_group=self._group(path, entry.hardlink_group))
        # The directory starts empty; what is put into it counts its links up again.
        added = entry.changed(linkcount=2) if entry.is_directory else entry
        self.edit.add(path, added, self.new.chunks(path, entry))
        if entry.is_directory:
            for child in self.new.listing(path):
                self._add(f"{path}/{child.name}", child)

    def _hang(self, path: str, entry: Dirent) -> None:
        reference = self.new.nested_at(path)
        if reference is None:
            raise MergeError(path, "a mountpoint without a nested catalog")
        catalog = self.new.inside(path).catalog
        self.edit.hang(reference, entry, catalog.statistics.total)

    def _group(self, path: str, group: int) -> int:
        """A hard-link group's number is unique within a catalog only: give it one of the catalog it comes into."""
        key = (path.rpartition("/")[0], group)
        if key not in self._groups:
            self._groups[key] = self.edit.holder(path).catalog.next_hardlink_group()
        return self._groups[key]

    def _same_nested(self, path: str, old: Dirent | None, new: Dirent | None) -> bool:
        if not (old and new and old.mountpoint and new.mountpoint):
            return True
        one, other = self.base.nested_at(path), self.new.nested_at(path)
        return one is not None and other is not None and one.hash == other.hash

    def _is(self, path: str, here: Dirent | None, side: View, entry: Dirent | None) -> bool:
        """Whether the current revision has at ``path`` what a side of the change has there."""
        if here is None or entry is None:
            return here is entry
        if not _alike(here, entry):
            return False
        if here.mountpoint:
            one, other = self.edit.nested_at(path), side.nested_at(path)
            return one is not None and other is not None and one.hash == other.hash
        return not entry.chunked or self.edit.chunks(path, here) == side.chunks(path, entry)


def _plain_directory(entry: Dirent) -> bool:
    return entry.is_directory and not entry.mountpoint


def _alike(one: Dirent, other: Dirent) -> bool:
    """Equal but for what differs between catalogs (group numbers) and what others' work changes (directory links)."""
    if one.is_directory and other.is_directory and not one.mountpoint and not other.mountpoint:
        one, other = one.changed(linkcount=2), other.changed(linkcount=2)
    return one.changed(hardlink_group=0) == other.changed(hardlink_group=0)
