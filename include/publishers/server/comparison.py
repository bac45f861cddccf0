"""Whether a destination has a packed tree: counted first, then entry by entry, contents if asked to."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from include.cvmfs.format.dirent import Dirent
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import SPECIALS, Entry, EntryKind, Opener
from include.cvmfs.sources.xattrs import unpack_xattrs
from include.publishers.server.pack import NodeArchive

_READ_BYTES = 1 << 20
_TYPES = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.DIRECTORY: stat.S_IFDIR,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat.S_IFBLK,
}
OWNER, XATTRS = "owner", "values of extended attributes"
SLIGHT = frozenset({OWNER, XATTRS})


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first thing that differs. One of ``SLIGHT`` in ``what`` means that nothing weightier does."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path or '/'}: {self.what}"


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """What is compared: owners, attributes and special bits only if they are kept; ``specials``: whether these have
    to be there."""

    owners: bool = False
    xattrs: tuple[str, ...] = ()
    mtime_ns: bool = False
    specials: bool = True
    special_bits: bool = False

    def difference(self, tree: Revision, packed: NodeArchive, *, contents: bool) -> FirstDifference | None:
        """What differs at the destination, None if it is the same tree. Raises what reading both raises."""
        path, wanted = packed.changeset.destination, packed.changeset.statistics.total
        there = tree.lookup(path)
        if there is None or not there.mountpoint:
            return FirstDifference(path, "does not exist" if there is None else "has no nested catalog")
        found = tree.catalog_at(path).statistics.total
        kinds = ("regular", "dir", "symlink", "special") if self.specials else ("regular", "dir", "symlink")
        for kind in kinds:
            if getattr(found, kind) != getattr(wanted, kind):
                return FirstDifference(
                    path, f"{getattr(found, kind)} entries of kind {kind}, not {getattr(wanted, kind)}"
                )
        if found.file_size != wanted.file_size:
            return FirstDifference(path, f"{found.file_size} bytes in all, not {wanted.file_size}")
        return self._entries(tree, path, packed.entries(self.xattrs), contents=contents)

    def _entries(
        self, tree: Revision, path: str, entries: Iterable[tuple[Entry, Opener | None]], *, contents: bool
    ) -> FirstDifference | None:
        # as many entries of each kind, and each that is wanted is there: then nothing else is
        slight: FirstDifference | None = None
        for entry, opener in entries:
            here = f"{path}/{entry.path}"
            if entry.kind in SPECIALS and not self.specials:
                continue
            if entry.kind is EntryKind.HARDLINK:
                what = _same_file(tree.lookup(here), tree.lookup(f"{path}/{entry.hardlink_to}"))
            else:
                what = self._of(tree.lookup(here), entry)
            if what is None and contents and opener is not None:
                what = _content(tree, here, opener)
            if what in SLIGHT:
                slight = slight or FirstDifference(here, what or "")
            elif what is not None:
                return FirstDifference(here, what)
        return slight

    def _of(self, there: Dirent | None, wanted: Entry) -> str | None:
        if there is None:
            return "is not there"
        if stat.S_IFMT(there.mode) != _TYPES[wanted.kind]:
            return f"is no {wanted.kind.value}"
        if wanted.kind is EntryKind.SYMLINK:
            if there.symlink != wanted.symlink:
                return "leads elsewhere"
        elif (there.mode ^ wanted.mode) & (0o7777 if self.special_bits else 0o777):
            return "has other permissions"
        if wanted.kind is EntryKind.FILE:
            if there.size != wanted.size:
                return f"has {there.size} bytes, not {wanted.size}"
            if there.mtime != wanted.mtime or (self.mtime_ns and (there.mtime_ns or 0) != wanted.mtime_ns):
                return "has another time"
        if self.owners and (there.uid, there.gid) != (wanted.uid, wanted.gid):
            return OWNER
        if self.xattrs and unpack_xattrs(there.xattr) != unpack_xattrs(wanted.xattr):
            return XATTRS
        return None


def _same_file(there: Dirent | None, other: Dirent | None) -> str | None:
    """Two names of one file; on the way it may have become two files."""
    if there is None or other is None:
        return None if there is other else "is not there"
    alike = (there.mode, there.size, there.hash, there.symlink) == (other.mode, other.size, other.hash, other.symlink)
    return None if alike else "is another file"


def _content(tree: Revision, path: str, opener: Opener) -> str | None:
    wanted, found = hashlib.sha256(), hashlib.sha256()
    content = opener()
    try:
        while data := content.read(_READ_BYTES):
            wanted.update(data)
    finally:
        content.close()
    for data in tree.stream(path):
        found.update(data)
    return None if wanted.digest() == found.digest() else "has another content"
