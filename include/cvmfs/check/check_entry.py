"""What must hold for one directory entry by itself, and for hard-linked ones together (docs/formats.md, catalogs)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from include.cvmfs.check.findings import Subject
from include.cvmfs.format.counters import NAMES, Counts
from include.cvmfs.format.dirent import Dirent

_NAMED_AT_MOST = 5
_SAME_ON_BOTH_SIDES = (
    ("name", "name"), ("linkcount", "link count"), ("hardlink_group", "hard-link group"), ("size", "size"),
    ("mode", "mode"), ("mtime", "mtime"), ("hash", "hash"), ("symlink", "symlink"),
    ("external", "external flag"),
)  # fmt: skip
_TYPE_FLAGS = 0x1 | 0x4 | 0x8 | 0x10


def entry_faults(entry: Dirent) -> Iterator[tuple[Subject, str]]:
    """What is wrong with the fields of one entry."""
    if entry.linkcount <= 0:
        yield Subject.ENTRY, "link count 0"
    if entry.is_regular:
        if entry.size < 0:
            yield Subject.ENTRY, f"size {entry.size}"
        if entry.hash is None and not entry.chunked:
            yield Subject.ENTRY, "a regular file without a content hash"
    else:
        flags = (("direct-I/O", entry.direct_io), ("external", entry.external), ("chunked", entry.chunked))
        for word, is_set in flags:
            if is_set:
                yield Subject.ENTRY, f"{word} flag on what is no regular file"
        if entry.hash is not None:
            yield Subject.ENTRY, "a content hash on what is no regular file"
        if entry.is_special and entry.symlink:
            yield Subject.ENTRY, "a special file with a symlink's target"
    if entry.is_directory:
        if entry.hardlink_group:
            yield Subject.ENTRY, f"a directory in hard-link group {entry.hardlink_group}"
    elif entry.linkcount > 1 and not entry.hardlink_group:
        yield Subject.HARDLINK, f"link count {entry.linkcount} without a hard-link group"


def type_fault(entry: Dirent, flags: int) -> str | None:
    """What is wrong unless flags and mode state the same type."""
    typed = 0x1 if entry.is_directory else 0x4 | (0x8 if entry.is_symlink else 0x10 if entry.is_special else 0)
    if flags & _TYPE_FLAGS == typed:
        return None
    return f"flags {flags:#x} and mode {entry.mode:#o} have different types"


def transition_faults(above: Dirent, root: Dirent) -> tuple[list[str], list[str]]:
    """In what a mountpoint's row and the nested root entry differ: what must be equal, and what had better be."""
    differing = [word for name, word in _SAME_ON_BOTH_SIDES if getattr(above, name) != getattr(root, name)]
    if above.mtime_ns is not None and root.mtime_ns is not None and above.mtime_ns != root.mtime_ns:
        differing.append("mtime (ns)")  # stock receivers up to 2.11 leave it out above
    if (above.xattr is None) != (root.xattr is None):
        differing.append("presence of extended attributes")
    return differing, [name for name in ("uid", "gid") if getattr(above, name) != getattr(root, name)]


def hardlink_faults(group: int, members: Sequence[tuple[str, Dirent]]) -> Iterator[tuple[str, str]]:
    """What is wrong with the members of one group in one directory: path and words."""
    first_path, first = members[0]
    if first.linkcount != len(members):
        names = ", ".join(entry.name for _, entry in members[:_NAMED_AT_MOST])
        yield first_path, f"group {group} has link count {first.linkcount}, but {len(members)} members: {names}"
    for path, entry in members[1:]:
        if entry.changed(name=first.name) != first:
            yield path, f"differs from {first.name}, of the same group {group}"


class Tally:
    """Counts entries up. Every field is a counter of the same name as in :class:`Counts`."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(NAMES, 0)

    def add(self, entry: Dirent, chunks: int) -> None:
        values = self._values
        if entry.xattr is not None:
            values["xattr"] += 1
        if entry.is_regular:
            values["regular"] += 1
            values["file_size"] += entry.size
            if entry.chunked:
                values["chunked"] += 1
                values["chunks"] += chunks
                values["chunked_size"] += entry.size
            if entry.external:
                values["external"] += 1
                values["external_file_size"] += entry.size
        else:
            values["dir" if entry.is_directory else "symlink" if entry.is_symlink else "special"] += 1

    def counts(self, nested: int) -> Counts:
        return Counts(**{**self._values, "nested": nested})
