"""Changes to one revision, catalog by catalog: what they rewrite is exactly the catalogs on the way to the root.

Counters and link counts are kept exact on both sides of every mountpoint (docs/formats.md, catalogs and statistics
counters). Nothing is stored here: ``finish`` returns the new catalogs for the commit to upload.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from include.cvmfs.errors import CatalogError, DestinationError
from include.cvmfs.format.catalog import MARKER, Catalog, Mark, NestedRef, PackedCatalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import CATALOG, ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress
from include.cvmfs.format.paths import ancestors, bytes_of_name, is_below, name_of, parent_of
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.revision import Revision, require_size

_PACKED_AT_ONCE = 2  # compressing leaves the interpreter to the next one


@dataclass(frozen=True, slots=True)
class NewRoot:
    """A revision that could be: its root catalog and all new catalogs, children before parents, not stored yet."""

    hash: ObjectHash
    size: int
    revision: int
    ttl: int
    base: ObjectHash
    catalogs: tuple[PackedCatalog, ...]
    objects: tuple[tuple[str, bytes], ...] = ()


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


@dataclass(slots=True)
class Savepoint:
    """State of an edit before an attempt: all of it comes back if the attempt fails."""

    nodes: dict[str, OpenCatalog]
    objects: dict[str, bytes]
    marked: dict[int, tuple[OpenCatalog, OpenCatalog, Mark]] = field(
        default_factory=dict
    )  # by id: node, how it was, its catalog
    forgotten: list[OpenCatalog] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Tell whether anything was done."""
        return bool(self.marked)

    def mark(self, node: OpenCatalog) -> None:
        """Called before a node is changed for the first time."""
        if id(node) not in self.marked:
            self.marked[id(node)] = node, replace(node), node.catalog.mark()


class Edit(Revision):
    """Changes to a revision. Paths are absolute and clean; a parent must exist before what is put into it.

    It reads what was changed, with catalogs of its own; references to nested ones are those of before until the change
    is finished. Not for several threads at once.
    """

    def __init__(self, catalogs: CatalogCache, base: ObjectHash) -> None:
        super().__init__(catalogs, base)
        catalog = self._opened_at("", base)
        self._nodes: dict[str, OpenCatalog] = {"": OpenCatalog(catalog, None, catalog.statistics.total)}
        self._within: dict[str, OpenCatalog] = {}  # by directory; emptied when it changes where catalogs begin
        self._objects: dict[str, bytes] = {}
        self._attempt: Savepoint | None = None
        self._root.catalog.make_writable()

    def close(self) -> None:
        """Let go of the opened catalogs."""
        for node in self._nodes.values():
            node.catalog.close()

    def inside(self, path: str) -> Catalog:
        return self._node_inside(path).catalog

    def _open(self, reference: NestedRef) -> Catalog:
        return self._node_inside(reference.path).catalog

    @property
    def changed(self) -> bool:
        return any(node.dirty for node in self._nodes.values())

    @contextmanager
    def attempt(self) -> Iterator[Savepoint]:
        """All or nothing: if the block raises, the edit is as if it had never begun. Not to be nested."""
        # Only the table of open catalogs is copied. A catalog marks itself before its first change and is rolled back
        # to that mark, so an attempt costs what it changes, and not what the edit has opened before.
        attempt = self._attempt = Savepoint(dict(self._nodes), dict(self._objects))
        try:
            yield attempt
        except BaseException:  # a kill as well: the changes before this one are still to be committed
            self._attempt = None
            for node, before, mark in attempt.marked.values():
                node.catalog.settle(mark, undo=True)
                node.parent, node.known, node.dirty = before.parent, before.known, before.dirty
            # What the attempt opened goes. What it forgot is open still, just for this: it comes back with the table.
            kept = {id(node) for node in attempt.nodes.values()}
            for node in [*self._nodes.values(), *attempt.forgotten]:
                if id(node) not in kept:
                    node.catalog.close()
            self._nodes, self._objects = attempt.nodes, attempt.objects
            self._within.clear()
            raise
        self._attempt = None
        for node, _, mark in attempt.marked.values():
            node.catalog.settle(mark, undo=False)
        for node in attempt.forgotten:
            node.catalog.close()

    # -- entries

    def add(self, path: str, entry: Dirent, chunks: Iterable[Chunk] = (), *, shows: NestedRef | None = None) -> None:
        """Put a file, symlink or plain directory at a free place; ``shows``: the catalog of a bind mountpoint.

        Raises DestinationError.
        """
        self._require_free(path)
        node = self._writable(self._holder(path))
        node.catalog.add(path, entry.changed(name=name_of(path), mountpoint=False, nested_root=False), chunks)
        if shows is not None:
            node.catalog.set_bind(NestedRef(path, shows.hash, shows.size))
        if entry.is_directory:
            self._link(parent_of(path), 1)

    def add_rows(
        self, directory: str, rows: Iterable[tuple[Any, ...]], chunks: Iterable[tuple[Any, ...]], counts: Counts
    ) -> None:
        """Put many rows, as ``Catalog.add_rows`` takes them, into the catalog of the entries of ``directory``.

        Places are free, parents are there, and their link counts know of what comes: the caller sees to that.
        """
        self._writable(self._node_inside(directory)).catalog.add_rows(rows, chunks, counts)

    def remove_rows(self, directory: str, entries: Sequence[Dirent]) -> None:
        """Take files away that are in a directory; none of them is chunked or has other names."""
        if entries:
            self._writable(self._node_inside(directory)).catalog.remove_rows(directory, entries)

    def bring(self, objects: Iterable[tuple[str, bytes]]) -> None:
        """Have these stored with the revision, by key: catalogs that were written for it before, to be hung."""
        self._objects.update(objects)

    def make_nested(self, path: str, entry: Dirent) -> None:
        """Make an empty directory that is a nested catalog, marker included."""
        self._require_free(path)
        parent = self._writable(self._holder(path))
        catalog = Catalog.create(path, entry, self._root.catalog.layout)
        self._mount(parent, path, entry)
        parent.catalog.set_nested(
            NestedRef(path, ObjectHash(bytes(20), self.root_hash.algorithm, CATALOG), 0), Counts()
        )
        self._nodes[path] = OpenCatalog(catalog, parent, Counts(), dirty=True)
        self._within.clear()
        empty = compress(b"")
        content = hash_bytes(empty, self.root_hash.algorithm)
        self._objects[content.key] = empty
        marker = Dirent(
            MARKER, stat.S_IFREG | 0o644, mtime=entry.mtime, uid=entry.uid, gid=entry.gid, hash=content,
            algorithm=content.algorithm,
        )  # fmt: skip
        catalog.add(f"{path}/{MARKER}", marker)

    def hang(self, reference: NestedRef, root_entry: Dirent, totals: Counts) -> None:
        """Put a stored catalog at its mount path: at a free place, or in the place of a nested catalog.

        ``totals``: the catalog's own counters and those below it. Raises DestinationError where something else exists.
        """
        path = reference.path
        occupant = self.row(path)
        if occupant is not None and not occupant.mountpoint:
            kind = "directory" if occupant.is_directory else "file"
            raise DestinationError(path, f"a {kind} that is no nested catalog exists there; remove it first")
        if occupant is None:
            self._require_free(path)
            before = Counts()
            parent = self._writable(self._holder(path))
            self._mount(parent, path, root_entry)
        else:
            before = self._totals(path)
            parent = self._writable(self._holder(path))
            # What hides a place is no part of the tree that hangs there.
            parent.catalog.update(path, _mountpoint(path, root_entry.changed(hidden=occupant.hidden)))
        self._forget(path)
        parent.catalog.set_nested(reference, totals - before)

    def remove(self, path: str) -> None:
        """Take away a file, or a directory with all below it; a nested catalog goes whole, without being walked."""
        entry = self.row(path)
        if entry is None:
            raise DestinationError(path, "nothing is there to remove")
        if not path:
            raise DestinationError(path, "the root of a repository cannot be removed")
        self._remove(path, entry)
        if entry.hardlink_group:
            self._unlink(parent_of(path), entry.hardlink_group)

    def move(self, source: str, target: str) -> None:
        """Move a file, or a directory with all below it, to another, free place; no content is read or stored.

        Nested catalogs are rewritten for their new paths. Hard links stay groups within their directories; a single
        name that leaves its directory becomes a file of its own. Raises DestinationError.
        """
        entry = self.row(source)
        if entry is None or not source:
            what = "the root of a repository cannot be moved" if not source else "nothing is there to move"
            raise DestinationError(source, what)
        if is_below(target, source):
            raise DestinationError(target, f"lies inside {source}, which is to be moved there; choose another place")
        self._require_free(target)
        old, new = self._writable(self._holder(source)), self._writable(self._holder(target))
        nodes = self._nodes_below(source, entry)
        leaves_group = bool(entry.hardlink_group) and parent_of(source) != parent_of(target)
        if leaves_group:
            old.catalog.update(source, entry.changed(linkcount=1, hardlink_group=0))
        if old is new:
            old.catalog.move(source, target)
        else:
            self._carry(old.catalog, new.catalog, source, target)
        for path in [key for key in self._nodes if is_below(key, source)]:
            del self._nodes[path]
        for node in nodes:
            if node.parent is old:
                node.parent = new
            node.catalog.move_to(target + node.path[len(source) :])
            self._nodes[node.path] = node
        self._within.clear()
        if leaves_group:
            self._unlink(parent_of(source), entry.hardlink_group)
        if entry.is_directory and parent_of(source) != parent_of(target):
            self._link(parent_of(source), -1)
            self._link(parent_of(target), 1)

    def symlink(self, path: str, target: str, *, now: int, owner: tuple[int, int] = (0, 0)) -> bool:
        """Let a symlink at ``path`` lead to ``target``; one that is there is replaced, and nothing else is.

        Returns whether there was anything to do. Raises DestinationError. ``now``: Unix s, ``owner``: uid and gid.
        """
        occupant = self.row(path)
        if occupant is not None:
            if not occupant.is_symlink:
                kind = "directory" if occupant.is_directory else "file"
                raise DestinationError(path, f"a {kind} exists there and is not replaced by a link; remove it first")
            if occupant.symlink == target:
                return False
            self.remove(path)
        uid, gid = owner
        size = len(bytes_of_name(target))
        self.add(path, Dirent("", stat.S_IFLNK | 0o777, size=size, mtime=now, uid=uid, gid=gid, symlink=target))
        return True

    def touch(self, path: str, entry: Dirent) -> None:
        """Give a directory the mode, owner, times, size and attributes of ``entry``; both sides of a mountpoint."""
        for node, row in self._rows_of_directory(path):
            changed = entry.changed(
                name=row.name, linkcount=row.linkcount, hardlink_group=0, mountpoint=row.mountpoint,
                nested_root=row.nested_root, bind=row.bind,
            )  # fmt: skip
            self._writable(node).catalog.update(path, changed)

    # -- closing

    def require_room(self, *, nested: int, root: int) -> None:
        """Raise CatalogError for a catalog that grew to more entries than it may have; 0 is no limit."""
        for node in self._dirty():
            most = nested if node.path else root
            entries = node.catalog.statistics.own.entries
            if most and entries > most and entries > self._entries_before(node):
                problem = f"its catalog would have {entries} entries, more than {most}"
                cure = "let directories below it be nested catalogs, each with a .cvmfscatalog, or raise the limit"
                raise CatalogError(node.path, f"{problem}; {cure}")

    def finish(self, now: int) -> NewRoot:
        """Close what changed, children before parents, up to a new root catalog one revision on. ``now``: Unix s."""
        self._writable(self._root)
        packed: list[PackedCatalog] = []
        algorithm = self.root_hash.algorithm
        with ThreadPoolExecutor(_PACKED_AT_ONCE, thread_name_prefix="pack-catalog") as pool:
            for _, level in groupby(sorted(self._dirty(), key=_depth, reverse=True), key=_depth):
                closed = [(node, self._close(node, now)) for node in level]
                each = pool.map if len(closed) > 1 else map
                done = each(lambda pair: PackedCatalog.of(pair[1], algorithm), closed)
                for (node, database), new in zip(closed, done, strict=True):
                    packed.append(new)
                    self.catalogs.remember(new.hash, database)
                    if node.parent is not None:
                        grown = node.catalog.statistics.total - node.known
                        node.parent.catalog.set_nested(NestedRef(node.path, new.hash, new.size), grown)
        root = self._root.catalog
        last = packed[-1]
        return NewRoot(
            last.hash, last.size, root.revision, root.ttl, self.root_hash, tuple(packed), tuple(self._objects.items())
        )

    # -- private

    @property
    def _root(self) -> OpenCatalog:
        return self._nodes[""]

    def _holder(self, path: str) -> OpenCatalog:
        """The node whose catalog has the row of ``path``."""
        return self._node_inside(parent_of(path)) if path else self._root

    def _node_inside(self, path: str) -> OpenCatalog:
        """The node whose catalog has the rows of what is in the directory ``path``."""
        if (opened_before := self._nodes.get(path) or self._within.get(path)) is not None:
            return opened_before
        node = self._root
        for step in ancestors(path):
            if (opened := self._nodes.get(step)) is not None:
                node = opened
            elif (reference := node.catalog.nested_at(step)) is not None:
                node = self._open_node(reference, node)
        self._within[path] = node
        return node

    def _open_node(self, reference: NestedRef, parent: OpenCatalog) -> OpenCatalog:
        catalog = self._opened_at(reference.path, reference.hash)
        require_size(reference, catalog)
        node = self._nodes[reference.path] = OpenCatalog(catalog, parent, catalog.statistics.total)
        return node

    def _opened_at(self, path: str, name: ObjectHash) -> Catalog:
        # Before anything is added to them: what an older revision does not count would be counted twice.
        return self.catalogs.completed(self.catalogs.open_nested(path, name))

    def _close(self, node: OpenCatalog, now: int) -> bytes:
        """The SQLite file of a catalog whose nested ones are all packed."""
        catalog = node.catalog
        if (before := self._before(node)) is not None:
            catalog.set_property("previous_revision", before)
        catalog.set_property("revision", catalog.revision + 1)
        catalog.set_property("last_modified", now)
        return catalog.to_bytes()

    def _entries_before(self, node: OpenCatalog) -> int:
        before = self._before(node)
        return 0 if before is None else self.catalogs.open(before).statistics.own.entries

    def _before(self, node: OpenCatalog) -> ObjectHash | None:
        """The stored catalog that this one replaces."""
        before = node.parent.catalog.nested_at(node.path) if node.parent else NestedRef("", self.root_hash, 0)
        return None if before is None or before.hash.is_null else before.hash

    def _dirty(self) -> list[OpenCatalog]:
        for node in list(self._nodes.values()):
            above = node.parent
            while node.dirty and above is not None:
                self._writable(above)
                above = above.parent
        return [node for node in self._nodes.values() if node.dirty]

    def _writable(self, node: OpenCatalog) -> OpenCatalog:
        if self._attempt is not None:
            self._attempt.mark(node)
        if not node.dirty:
            node.catalog.make_writable()
            node.dirty = True
        return node

    def _remove(self, path: str, entry: Dirent) -> None:
        node = self._writable(self._holder(path))
        if entry.is_directory:
            for reference in [nested for nested in node.catalog.nested() if is_below(nested.path, path)]:
                node.catalog.remove_nested(reference.path, self._totals(reference.path))
            self._forget(path)
        node.catalog.remove_tree(path)
        if entry.is_directory:
            self._link(parent_of(path), -1)

    def _nodes_below(self, path: str, entry: Dirent) -> list[OpenCatalog]:
        """All catalogs mounted at a path or below it, opened, to be changed."""
        around = self.holder(path)
        pending = (
            [nested.path for nested in around.nested() if is_below(nested.path, path)] if entry.is_directory else []
        )
        nodes = []
        while pending:
            node = self._writable(self._node_inside(pending.pop()))
            nodes.append(node)
            pending += [nested.path for nested in node.catalog.nested()]
        return nodes

    def _carry(self, old: Catalog, new: Catalog, source: str, target: str) -> None:
        """Take an entry and all rows below it from one catalog into another; link groups get numbers of the new one."""
        groups: dict[int, int] = {}
        next_group = new.next_hardlink_group()
        pending = [(source, target)]
        while pending:
            here, place = pending.pop()
            entry = old.lookup(here)
            if entry is None:
                raise CatalogError(here, "its row does not match its parent and name")
            if entry.hardlink_group:
                group = groups.setdefault(entry.hardlink_group, next_group + len(groups))
                entry = entry.changed(hardlink_group=group)
            new.add(place, entry.changed(name=name_of(place)), old.chunks(here, entry) if entry.chunked else ())
            if entry.mountpoint and (nested := old.nested_at(here)) is not None:
                totals = self._totals(here)
                old.remove_nested(here, totals)
                new.set_nested(NestedRef(place, nested.hash, nested.size), totals)
            elif entry.bind and (bind := old.bind_at(here)) is not None:
                new.set_bind(NestedRef(place, bind.hash, bind.size))
            elif entry.is_directory:
                pending += [(f"{here}/{child.name}", f"{place}/{child.name}") for child in old.listing(here)]
        old.remove_tree(source)

    def _unlink(self, directory: str, group: int) -> None:
        """Take one link of a group away: the others count one less, and a last one is no group any more."""
        catalog = self.inside(directory)
        for entry in catalog.listing(directory):
            if entry.hardlink_group == group:
                left = entry.linkcount - 1
                catalog.update(
                    f"{directory}/{entry.name}", entry.changed(linkcount=left, hardlink_group=group if left > 1 else 0)
                )

    def _require_free(self, path: str) -> None:
        parent = self.row(parent_of(path))
        if parent is None or not parent.is_directory or parent.bind:
            what = (
                "does not exist" if parent is None else "is a bind mountpoint" if parent.bind else "is not a directory"
            )
            raise DestinationError(path, f"its parent {parent_of(path) or '/'} {what}")
        if self.row(path) is not None:
            raise DestinationError(path, "it exists already")

    def _mount(self, parent: OpenCatalog, path: str, entry: Dirent) -> None:
        parent.catalog.add(path, _mountpoint(path, entry))
        self._link(parent_of(path), 1)

    def _totals(self, path: str) -> Counts:
        """Return what the parent's counters hold for the catalog mounted at ``path``; one that is not open stays
        closed."""
        if (opened := self._nodes.get(path)) is not None:
            return opened.known
        reference = self.holder(path).nested_at(path)
        return self._node_inside(path).known if reference is None else self.catalogs.totals(reference)

    def _forget(self, path: str) -> None:
        self._within.clear()
        for opened in [key for key in self._nodes if is_below(key, path)]:
            node = self._nodes.pop(opened)
            if self._attempt is None:
                node.catalog.close()
            else:
                self._attempt.forgotten.append(node)

    def _rows_of_directory(self, path: str) -> list[tuple[OpenCatalog, Dirent]]:
        nodes = {id(node): node for node in (self._holder(path), self._node_inside(path))}
        rows = [(node, node.catalog.lookup(path)) for node in nodes.values()]
        return [(node, row) for node, row in rows if row is not None]

    def _link(self, path: str, change: int) -> None:
        for node, row in self._rows_of_directory(path):
            self._writable(node).catalog.update(path, row.changed(linkcount=row.linkcount + change))


def _depth(node: OpenCatalog) -> int:
    return node.path.count("/")


def _mountpoint(path: str, entry: Dirent) -> Dirent:
    return entry.changed(name=name_of(path), mountpoint=True, nested_root=False)
