"""Differences between two revisions, entry by entry. A nested catalog that both have is skipped whole, so that the
cost follows the change and not the tree."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.paths import bytes_of_name, clean_path, parent_of
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import printable

Links = frozenset[str]


class Difference(Enum):
    """Kind of a difference; the value is the mark that listings use."""

    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"


@dataclass(frozen=True, slots=True)
class DifferingEntry:
    """A difference. ``what`` names the differing properties of a changed one; ``before`` and ``after`` are its rows.

    ``links``: the names in its directory, in the later revision, that are hard links to the same file, its own too.
    """

    kind: Difference
    path: str
    before: Dirent | None
    after: Dirent | None
    what: tuple[str, ...] = ()
    links: Links = frozenset()

    def __str__(self) -> str:
        detail = f" ({', '.join(self.what)})" if self.what else ""
        return f"{self.kind.value} {printable(self.path) or '/'}{detail}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts: dict[str, Any] = {
            "path": printable(self.path) or "/", "kind": self.kind.name.lower(), "what": list(self.what),
        }  # fmt: skip
        for side, entry in (("before", self.before), ("after", self.after)):
            if entry is not None:
                content = str(entry.hash) if entry.hash else None
                facts[side] = {"mode": stat.filemode(entry.mode), "size": entry.size, "mtime": entry.mtime}
                facts[side] |= {"uid": entry.uid, "gid": entry.gid, "hash": content}
                facts[side] |= {"symlink": printable(entry.symlink)} if entry.is_symlink else {}
        return facts


def diff(before: Revision, after: Revision, path: str = "", *, moved: str | None = None) -> Iterator[DifferingEntry]:
    """Every difference at ``path`` and below, parents first, in name order (bytes).

    ``moved``: where the later revision has the tree, if not there; the differences have the names below ``path``.

    An entry that became another kind of thing is one change, and what was or is below it follows. Link counts
    and sizes of directories follow from what is in them and do not count. Raises CatalogError where neither revision
    has anything, and what reading a tree raises.
    """
    path = clean_path(path)
    to = path if moved is None else clean_path(moved)
    place, other = _Place.at(before, path), _Place.at(after, to)
    if place is None and other is None:
        raise CatalogError(path, "no such file or directory in either revision")
    if before.root_hash == after.root_hash and path == to:
        return
    pending = [_Pair(path, to, place, other)]
    while pending:
        pair = pending.pop()
        if (change := pair.change()) is not None:
            yield change
        pending.extend(reversed(pair.below()))


@dataclass(frozen=True, slots=True)
class _Place:
    """An entry on one side, the catalog that has its row, and its fellows in a group of hard links."""

    tree: Revision
    entry: Dirent
    holder: Catalog
    links: Links = frozenset()

    @classmethod
    def at(cls, tree: Revision, path: str) -> _Place | None:
        entry = tree.lookup(path)
        if entry is None:
            return None
        holder = tree.holder(path)
        links = _groups(holder.listing(parent_of(path))) if entry.hardlink_group else {}
        return cls(tree, entry, holder, links.get(entry.hardlink_group, frozenset()))

    def chunks(self, path: str) -> tuple[Chunk, ...]:
        return self.holder.chunks(path, self.entry) if self.entry.chunked else ()

    def nested(self, path: str) -> bytes | None:
        """The hash of the catalog mounted here."""
        reference = self.holder.nested_at(path) if self.entry.mountpoint else None
        return reference.hash.digest if reference else None

    def below(self, path: str) -> dict[str, _Place]:
        entry = self.entry
        if not entry.is_directory or entry.bind:
            return {}
        catalog = self.tree.mounted(path, self.holder) if entry.mountpoint else self.holder
        listing = catalog.listing(path)
        groups = _groups(listing)
        return {
            child.name: _Place(self.tree, child, catalog, groups.get(child.hardlink_group, frozenset()))
            for child in listing
        }


@dataclass(frozen=True, slots=True)
class _Pair:
    """A path on both sides; one of them may have nothing there. ``to``: the path on the later side."""

    path: str
    to: str
    before: _Place | None
    after: _Place | None

    def change(self) -> DifferingEntry | None:
        before, after = self.before, self.after
        if before is None or after is None:
            kind = Difference.ADDED if before is None else Difference.REMOVED
            old, new = before.entry if before else None, after.entry if after else None
            return DifferingEntry(kind, self.path, old, new, links=after.links if after else frozenset())
        what = _differences(self.path, self.to, before, after)
        return (
            DifferingEntry(Difference.CHANGED, self.path, before.entry, after.entry, what, after.links)
            if what
            else None
        )

    def below(self) -> list[_Pair]:
        before, after = self.before, self.after
        if before and after and (nested := before.nested(self.path)) is not None and nested == after.nested(self.to):
            return []
        old = before.below(self.path) if before else {}
        new = after.below(self.to) if after else {}
        names = sorted(old.keys() | new.keys(), key=bytes_of_name)
        return [_Pair(f"{self.path}/{name}", f"{self.to}/{name}", old.get(name), new.get(name)) for name in names]


def _differences(path: str, to: str, place: _Place, other: _Place) -> tuple[str, ...]:
    a, b = place.entry, other.entry
    if stat.S_IFMT(a.mode) != stat.S_IFMT(b.mode):
        return ("type",)
    size = ("size", a.size, b.size) if not a.is_directory else ("size", 0, 0)
    compared = (
        ("content", (a.hash, place.chunks(path)), (b.hash, other.chunks(to))),
        size,
        ("target", a.symlink, b.symlink),
        ("mode", a.mode, b.mode),
        ("mtime", (a.mtime, a.mtime_ns or 0), (b.mtime, b.mtime_ns or 0)),
        ("owner", (a.uid, a.gid), (b.uid, b.gid)),
        ("xattrs", a.xattr, b.xattr),
        ("links", place.links, other.links),
        ("nested catalog", a.mountpoint, b.mountpoint),
        ("storage", (a.external, a.compression, a.direct_io), (b.external, b.compression, b.direct_io)),
        ("flags", (a.hidden, a.bind), (b.hidden, b.bind)),
    )
    shown = a.bind and b.bind and place.holder.bind_at(path) != other.holder.bind_at(to)
    return tuple(name for name, here, there in compared if here != there) + (("bind",) if shown else ())


def _groups(listing: list[Dirent]) -> dict[int, Links]:
    names: dict[int, set[str]] = {}
    for entry in listing:
        if entry.hardlink_group:
            names.setdefault(entry.hardlink_group, set()).add(entry.name)
    return {group: frozenset(members) for group, members in names.items()}
