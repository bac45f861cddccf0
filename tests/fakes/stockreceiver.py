"""What the stock receiver does to a commit: its merge, entry by entry, with everything that it loses or panics at.

Rules: docs/formats.md, gateway. On top of our own catalogs, so that what comes out is a sound revision.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from include.cvmfs.commit.commit import NewTag, load_history, read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CvmfsError, ObjectMissing
from include.cvmfs.format.catalog import MARKER, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import Signer
from include.cvmfs.format.paths import name_of, parent_of
from include.cvmfs.revision.revision import Revision
from include.storage.store import Store


class Panic(Exception):
    """The receiver died; its text becomes part of the reply."""


class Refused(Exception):
    """One of the receiver's result codes."""


@dataclass
class Receiver:
    """Merges and publishes. ``walked`` counts the entries that it compared one by one in its last commit."""

    store: Store
    fqrn: str
    signer: Signer
    walked: int = 0
    swapped: list[str] = field(default_factory=list)

    def commit(self, lease_path: str, old: ObjectHash, new: ObjectHash, tag: NewTag | None) -> int:
        """The new revision: there always is one, also if nothing changed. Raises Panic, Refused."""
        self.walked, self.swapped = 0, []
        catalogs = CatalogCache(self.store)
        head = read_head(self.store, self.fqrn)
        if tag is not None and load_history(self.store, head.manifest).tag(tag.name) is not None:
            raise Refused("miscellaneous")
        edit = Edit(catalogs, head.manifest.root)
        try:
            self._merge(Revision(catalogs, old), Revision(catalogs, new), edit, lease_path)
        except ObjectMissing as missing:
            raise Panic(
                f"PANIC: /build/cvmfs/catalog_mgr_ro.cc : 81\nfailed to load {missing} from Stratum 0 "
                "(9 - host returned HTTP error)"
            ) from missing
        except CvmfsError as fault:
            raise Panic(f"PANIC: /build/cvmfs/catalog_mgr_rw.cc : 500\n{fault}") from fault
        now = int(time.time())
        tags = (tag,) if tag is not None else ()
        root = edit.finish(now)
        done = switch(self.store, head, root, signer=self.signer, now=now, tags=tags, superseded=(new,))
        return done.manifest.revision

    def _merge(self, old: Revision, new: Revision, edit: Edit, lease: str) -> None:
        place = lease.rstrip("/")
        above = edit.lookup(parent_of(place)) if place else None
        if place and (above is None or not above.is_directory):
            raise Panic(f"PANIC: /build/cvmfs/catalog_mgr_rw.cc : 43\ncatalog for directory '{place}' cannot be found")
        _Diff(self, old, new, edit, lease).directory("")


class _Diff:
    def __init__(self, receiver: Receiver, old: Revision, new: Revision, edit: Edit, lease: str) -> None:
        self.receiver, self.old, self.new, self.edit = receiver, old, new, edit
        self.place, self.strict = lease.rstrip("/"), lease.endswith("/")

    def reported(self, path: str) -> bool:
        """With a trailing slash the leased directory itself is outside."""
        return path.startswith(f"{self.place}/") or (path == self.place and not self.strict)

    def entered(self, path: str) -> bool:
        return path.startswith(f"{self.place}/") or path == self.place or self.place.startswith(f"{path}/")

    def directory(self, path: str) -> None:
        if path and not self.entered(path):
            return
        old = {one.name: one for one in self.old.listing(path)} if self._is_directory(self.old, path) else {}
        new = {one.name: one for one in self.new.listing(path)} if self._is_directory(self.new, path) else {}
        for name in sorted(old.keys() | new.keys()):
            self.entry(f"{path}/{name}", old.get(name), new.get(name))

    def entry(self, path: str, old: Dirent | None, new: Dirent | None) -> None:
        self.receiver.walked += 1
        sides = [one for one in (old, new) if one is not None]
        if any(one.linkcount == 0 for one in sides):
            raise Panic(f"PANIC: entry with linkcount 0: {path}")
        if any(one.hidden for one in sides):
            return
        if not self.reported(path):
            if old is not None and new is not None and old.is_directory and new.is_directory:
                self.directory(path)
            return
        if old is None and new is not None:
            self.added(path, new)
        elif new is None and old is not None:
            self.removed(path, old)
        elif old is not None and new is not None:
            self.both(path, old, new)

    def both(self, path: str, old: Dirent, new: Dirent) -> None:
        alike = _compared(old) == _compared(new)
        if old.mountpoint and new.mountpoint:
            one, two = self.old.nested_at(path), self.new.nested_at(path)
            assert one is not None
            assert two is not None
            if not (alike and one.hash == two.hash):
                self.swap(path, two)
            return
        if old.is_directory and new.is_directory:
            if old.mountpoint != new.mountpoint:
                raise Panic(f"PANIC: the fake does not turn a plain directory into a nested catalog: {path}")
            if not alike:
                self.edit.touch(path, new)
            self.directory(path)
            return
        if alike:
            return
        self.removed(path, old)
        self.added(path, new)

    def swap(self, path: str, there: NestedRef) -> None:
        catalog = self.new.catalogs.completed(self.new.inside(path))
        if not there.size:
            raise Panic(f"PANIC: nested catalog of size 0: {path}")
        self.receiver.swapped.append(path)
        self.edit.hang(there, catalog.root_entry, catalog.statistics.total)

    def added(self, path: str, new: Dirent) -> None:
        if new.is_directory:
            entry = new.changed(linkcount=2)
            if new.mountpoint:
                self.edit.make_nested(path, entry)
            else:
                self.edit.add(path, entry)
            self.directory(path)
        elif new.is_regular or new.is_symlink:
            if name_of(path) == MARKER and self.edit.lookup(path) is not None:
                return  # came with its catalog
            if self.edit.lookup(path) is not None:
                raise Panic(f"PANIC: UNIQUE constraint failed: {path}")
            plain = new.changed(linkcount=1, hardlink_group=0)
            self.edit.add(path, plain, self.new.chunks(path))

    def removed(self, path: str, old: Dirent) -> None:
        if old.is_directory:
            if not old.mountpoint:
                self._require_no_hard_links(path)
            self.edit.remove(path)
        elif old.is_regular or old.is_symlink:
            if old.linkcount > 1:
                raise Panic(f"PANIC: hardlinks are not supported: {path}")
            if self.edit.lookup(path) is not None:
                self.edit.remove(path)

    def _require_no_hard_links(self, path: str) -> None:
        for entry in self.old.listing(path):
            if entry.is_regular and entry.linkcount > 1:
                raise Panic(f"PANIC: hardlinks are not supported: {path}/{entry.name}")
            if entry.is_directory and not entry.mountpoint:
                self._require_no_hard_links(f"{path}/{entry.name}")

    @staticmethod
    def _is_directory(view: Revision, path: str) -> bool:
        entry = view.lookup(path)
        return entry is not None and entry.is_directory


def _compared(entry: Dirent) -> tuple[object, ...]:
    """Neither owner nor the values of extended attributes."""
    return (
        entry.name, entry.linkcount, entry.size, entry.mode, entry.mtime, entry.mtime_ns, entry.symlink, entry.hash,
        bool(entry.xattr), entry.hardlink_group, entry.mountpoint, entry.nested_root, entry.chunked, entry.external,
        entry.bind, entry.hidden, entry.direct_io,
    )  # fmt: skip
