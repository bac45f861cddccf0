"""A revision as one tree, for reading, whatever catalogs it is cut into; and differences between two of them.

These are entry by entry. A nested catalog that both have is skipped whole: the cost follows the change, not the tree.
"""

from __future__ import annotations

import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from include.cvmfs.errors import CatalogError, ObjectDamaged, ObjectMissing
from include.cvmfs.format import objects
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache, Mountable
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.paths import bytes_of_name, clean_path, parent_of, path_and_above
from include.cvmfs.sources.source import printable

OPEN_BYTES = 64 << 20
_DIRECTORIES = 100_000  # whose catalogs are remembered


class Revision:
    """Reads one revision. Every object is verified against the hash that names it; memory is bounded by budgets of
    bytes. Paths are absolute (``""`` or ``/`` is the root); symlinks are not followed, bind mountpoints not crossed.

    ``row``, ``holder`` and ``inside`` take a clean path as it is, also one with a name from a catalog that no entry
    may have. ``sizes``: refuse a nested catalog that has not the size in bytes that the catalog above records; changes
    are made on nothing else. All methods may raise CatalogError, FormatError, ObjectMissing, ObjectDamaged and
    StoreError. Safe to share between threads.
    """

    def __init__(
        self, catalogs: CatalogCache, root: ObjectHash, *, sizes: bool = False, budget: int = OPEN_BYTES
    ) -> None:
        self.catalogs = catalogs
        self.root_hash = root.with_suffix(CATALOG)
        self._sizes = sizes
        self._budget = budget
        self._held = 0
        self._opened: OrderedDict[tuple[str, bytes], tuple[Catalog, int]] = OrderedDict()
        self._inside: dict[str, Catalog] = {}  # by directory; read and set without the lock
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the opened catalogs, when nothing reads them any more."""
        for catalog, _ in self._opened.values():
            catalog.close()

    @property
    def root(self) -> Catalog:
        """The root catalog; to be read only, and not closed."""
        return self.inside("")

    # -- entries

    def lookup(self, path: str) -> Dirent | None:
        """The entry at a path, or None. A mountpoint's is the row of the catalog above."""
        path = clean_path(path)
        return self.inside(parent_of(path)).lookup(path)

    def row(self, path: str) -> Dirent | None:
        """Look up a clean path."""
        return self.inside(parent_of(path)).lookup(path)

    def entry(self, path: str) -> Dirent:
        """Look up a path; raises CatalogError when nothing is there."""
        entry = self.lookup(path)
        if entry is None:
            raise CatalogError(clean_path(path), f"no such file or directory in the revision {self.root_hash}")
        return entry

    def listing(self, path: str) -> list[Dirent]:
        """The entries directly below a directory, in name order (bytes)."""
        path = clean_path(path)
        if not self.entry(path).is_directory:
            raise CatalogError(path, "is not a directory")
        return self.inside(path).listing(path)

    def chunks(self, path: str) -> tuple[Chunk, ...]:
        """The pieces of a chunked file in order; none for any other entry."""
        path = clean_path(path)
        entry = self.entry(path)
        return self.holder(path).chunks(path, entry) if entry.chunked else ()

    def catalog_at(self, path: str) -> Catalog:
        """The catalog with the rows of what is in the directory ``path``; to be read only, and not closed."""
        return self.inside(clean_path(path))

    def holder(self, path: str) -> Catalog:
        """The catalog that has the row of ``path``, a mountpoint's above it; to be read only, and not closed."""
        return self.inside(parent_of(path))

    def inside(self, path: str) -> Catalog:
        """Return the catalog of a clean path."""
        if (held := self._inside.get(path)) is not None:
            return held
        unknown = []
        for above in path_and_above(path):
            if (held := self._inside.get(above)) is not None:
                break
            unknown.append(above)
        catalog = held or self._open(NestedRef("", self.root_hash, 0))
        for step in reversed(unknown):
            if step and (reference := catalog.nested_at(step)) is not None:
                catalog = self._open(reference)
            self._remember(step, catalog)
        return catalog

    def mounted(self, path: str, above: Catalog) -> Catalog:
        """The catalog mounted at ``path``, whose row is in the catalog ``above``."""
        reference = above.nested_at(path)
        if reference is None:
            raise CatalogError(path, "is a mountpoint, but no nested catalog is registered for it")
        return self._open(reference)

    def nested_at(self, path: str) -> NestedRef | None:
        """The reference to the catalog mounted exactly at ``path``, if one is."""
        path = clean_path(path)
        return self.holder(path).nested_at(path) if path else None

    # -- content

    def read(self, path: str) -> bytes:
        """The whole content of a regular file, verified."""
        return b"".join(self.stream(path))

    def stream(self, path: str, *, block: int = 1 << 20) -> Iterator[bytes]:
        """The content of a regular file in pieces. The last piece of each object comes after its hash was verified."""
        path = clean_path(path)
        entry = self.entry(path)
        if not entry.is_regular:
            what = f"a symlink to {entry.symlink}" if entry.is_symlink else "not a regular file"
            raise CatalogError(path, f"cannot be read: it is {what}")
        if entry.external:
            raise CatalogError(path, "is an external file: its content is not in this repository's store")
        return self._content(path, entry, self.holder(path), block)

    # -- the whole of it

    def walk(self, path: str = "") -> Iterator[tuple[str, Dirent]]:
        """The entry at ``path`` and everything below it with its path, parents first, in name order (bytes)."""
        path = clean_path(path)
        entry = self.entry(path)
        yield path, entry
        if not entry.is_directory:
            return
        levels = [self._below(path, self.inside(path))]
        while levels:
            found = next(levels[-1], None)
            if found is None:
                levels.pop()
                continue
            here, child, catalog = found
            yield here, child
            if child.is_directory and not child.bind:
                levels.append(self._below(here, self.mounted(here, catalog) if child.mountpoint else catalog))

    def catalogs_below(self, path: str = "") -> Iterator[NestedRef]:
        """Every nested catalog mounted at ``path`` or below it, parents first; for the root its own catalog too."""
        path = clean_path(path)
        own = self.nested_at(path) if path else NestedRef("", self.root_hash, 0)
        if own is not None:
            pending = [own]
        else:
            pending = [reference for reference in self.inside(path).nested() if reference.path.startswith(f"{path}/")]
        pending.reverse()
        while pending:
            reference = pending.pop()
            yield reference
            pending.extend(reversed(self._open(reference).nested()))

    def objects_below(self, path: str = "") -> Iterator[tuple[ObjectHash, int]]:
        """Every data object and catalog that the subtree needs, with its uncompressed size in bytes.

        An object that several files share comes several times. External files have none.
        """
        path = clean_path(path)
        if path and self.nested_at(path) is None:
            catalog = self.holder(path)
            for here, entry in self._rows_of_one_catalog(path, catalog):
                yield from _objects(here, entry, catalog)
        for reference in self.catalogs_below(path):
            catalog = self._open(reference)
            yield reference.hash.with_suffix(CATALOG), len(self.catalogs.database(reference.hash))
            for name, size, _ in catalog.objects():
                yield name, size or 0

    # -- private

    def _below(self, path: str, catalog: Catalog) -> Iterator[tuple[str, Dirent, Catalog]]:
        return ((f"{path}/{child.name}", child, catalog) for child in catalog.listing(path))

    def _rows_of_one_catalog(self, path: str, catalog: Catalog) -> Iterator[tuple[str, Dirent]]:
        entry = self.entry(path)
        yield path, entry
        pending = [path] if entry.is_directory else []
        while pending:
            above = pending.pop()
            for child in catalog.listing(above):
                here = f"{above}/{child.name}"
                yield here, child
                if child.is_directory and not child.mountpoint and not child.bind:
                    pending.append(here)

    def _content(self, path: str, entry: Dirent, catalog: Catalog, block: int) -> Iterator[bytes]:
        store = self.catalogs.store
        try:
            if not entry.chunked:
                if entry.hash is None:
                    raise CatalogError(path, "is a regular file without a content hash")
                yield from objects.stream(store, entry.hash, entry.compression, size=entry.size, block=block)
                return
            end = 0
            for chunk in catalog.chunks(path, entry):
                if chunk.offset != end:
                    raise CatalogError(path, f"its chunks leave a gap or overlap at byte {end}")
                end += chunk.size
                yield from objects.stream(store, chunk.hash, entry.compression, size=chunk.size, block=block)
            if end != entry.size:
                raise CatalogError(path, f"its chunks hold {end} bytes, its entry has {entry.size}")
        except ObjectMissing as fault:
            raise ObjectMissing(fault.key, f"not in the store; it is content of {path}") from None
        except ObjectDamaged as fault:
            raise ObjectDamaged(fault.key, f"content of {path}; {str(fault).removeprefix(f'{fault.key}: ')}") from None

    def _remember(self, directory: str, catalog: Catalog) -> None:
        if len(self._inside) >= _DIRECTORIES:
            self._inside = {}
        self._inside[directory] = catalog

    def _open(self, reference: NestedRef) -> Catalog:
        key = (reference.path, reference.hash.digest)
        with self._lock:
            if (held := self._opened.get(key)) is not None:
                self._opened.move_to_end(key)
                return held[0]
        catalog = self.catalogs.open_nested(reference.path, reference.hash)
        if self._sizes:
            require_size(reference, catalog)
        with self._lock:
            if key not in self._opened:
                self._opened[key] = (catalog, catalog.size)
                self._held += catalog.size
            # What is dropped is not closed: another thread or a walk may still be reading it.
            while self._held > self._budget and len(self._opened) > 1:
                self._held -= self._opened.popitem(last=False)[1][1]
                self._inside = {}
        return catalog


def require_size(reference: NestedRef, catalog: Catalog | Mountable) -> None:
    """Raises CatalogError unless the catalog has the size that its reference records; 0 records none."""
    if reference.size and catalog.size != reference.size:
        problem = f"the nested catalog is not of the {reference.size} bytes recorded above it"
        raise CatalogError(reference.path, problem)


def _objects(path: str, entry: Dirent, catalog: Catalog) -> Iterator[tuple[ObjectHash, int]]:
    if entry.external:
        return
    if entry.hash is not None:
        yield entry.hash, entry.size
    if entry.chunked:
        yield from ((chunk.hash, chunk.size) for chunk in catalog.chunks(path, entry))


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
