"""Changes to one revision, catalog by catalog: what they rewrite is exactly the catalogs on the way to the root.

Counters and link counts are kept exact on both sides of every mountpoint (docs/formats.md, catalogs and statistics
counters). Nothing is stored here: ``finish`` returns the new catalogs for the commit to upload.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

from include.cvmfs.catalog import MARKER, Catalog, NestedRef, Packed, name_of, parent_of
from include.cvmfs.catalogs import CatalogCache
from include.cvmfs.compression import compress
from include.cvmfs.counters import Counts
from include.cvmfs.dirent import Chunk, Dirent
from include.cvmfs.errors import DestinationError
from include.cvmfs.hashes import CATALOG, ObjectHash, hash_bytes
from include.cvmfs.view import Node, View, is_below


@dataclass(frozen=True, slots=True)
class NewRoot:
    """A revision that could be: its root catalog and all new catalogs, children before parents, not stored yet."""

    hash: ObjectHash
    size: int
    revision: int
    ttl: int
    base: ObjectHash
    catalogs: tuple[Packed, ...]
    objects: tuple[tuple[str, bytes], ...] = ()


class Edit(View):
    """A view that can be changed. Paths are absolute; a parent must exist before what is put into it."""

    def __init__(self, catalogs: CatalogCache, base: ObjectHash) -> None:
        super().__init__(catalogs, base)
        self._objects: dict[str, bytes] = {}
        self.root.catalog.make_writable()

    @property
    def changed(self) -> bool:
        return any(node.dirty for node in self._nodes.values())

    # -- entries

    def add(self, path: str, entry: Dirent, chunks: Iterable[Chunk] = ()) -> None:
        """Put a file, symlink or plain directory at a free place. Raises DestinationError."""
        self._require_free(path)
        node = self._writable(self.holder(path))
        node.catalog.add(path, entry.changed(name=name_of(path), mountpoint=False, nested_root=False), chunks)
        if entry.is_directory:
            self._link(parent_of(path), 1)

    def make_nested(self, path: str, entry: Dirent) -> None:
        """Make an empty directory that is a nested catalog, marker included."""
        self._require_free(path)
        parent = self._writable(self.holder(path))
        catalog = Catalog.create(path, entry)
        self._mount(parent, path, entry)
        parent.catalog.set_nested(
            NestedRef(path, ObjectHash(bytes(20), self.root_hash.algorithm, CATALOG), 0), Counts()
        )
        self._nodes[path] = Node(catalog, parent, Counts(), dirty=True)
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

        ``totals``: the catalog's own counters and those below it. Raises DestinationError where something else stands.
        """
        path = reference.path
        there = self.lookup(path)
        if there is not None and not there.mountpoint:
            kind = "directory" if there.is_directory else "file"
            raise DestinationError(path, f"a {kind} that is no nested catalog stands there; remove it first")
        if there is None:
            self._require_free(path)
            before = Counts()
            parent = self._writable(self.holder(path))
            self._mount(parent, path, root_entry)
        else:
            before = self._totals(path)
            parent = self._writable(self.holder(path))
            parent.catalog.update(path, _mountpoint(path, root_entry))
        self._forget(path)
        parent.catalog.set_nested(reference, totals - before)

    def remove(self, path: str) -> None:
        """Take away a file, or a directory with all below it; a nested catalog goes whole, without being walked."""
        entry = self.lookup(path)
        if entry is None:
            raise DestinationError(path, "nothing is there to remove")
        if not path:
            raise DestinationError(path, "the root of a repository cannot be removed")
        self._remove(path, entry)
        if entry.hardlink_group:
            self._unlink(parent_of(path), entry.hardlink_group)

    def touch(self, path: str, entry: Dirent) -> None:
        """Give a directory the mode, owner, times, size and attributes of ``entry``; both sides of a mountpoint."""
        for node, row in self._rows_of_directory(path):
            changed = entry.changed(
                name=row.name, linkcount=row.linkcount, hardlink_group=0, mountpoint=row.mountpoint,
                nested_root=row.nested_root, bind=row.bind,
            )  # fmt: skip
            self._writable(node).catalog.update(path, changed)

    # -- closing

    def finish(self, now: int) -> NewRoot:
        """Close what changed, children before parents, up to a new root catalog one revision on. ``now``: Unix s."""
        self._writable(self.root)
        packed: list[Packed] = []
        for node in sorted(self._dirty(), key=lambda node: -node.path.count("/")):
            catalog = node.catalog
            before = node.parent.catalog.nested_at(node.path) if node.parent else NestedRef("", self.root_hash, 0)
            if before is not None and not before.hash.is_null:
                catalog.set_property("previous_revision", before.hash)
            catalog.set_property("revision", catalog.revision + 1)
            catalog.set_property("last_modified", now)
            database = catalog.to_bytes()
            done = Packed.of(database, self.root_hash.algorithm)
            packed.append(done)
            self.catalogs.remember(done.hash, database)
            if node.parent is not None:
                grown = catalog.statistics.total - node.known
                node.parent.catalog.set_nested(NestedRef(node.path, done.hash, done.size), grown)
        root = self.root.catalog
        last = packed[-1]
        return NewRoot(
            last.hash, last.size, root.revision, root.ttl, self.root_hash, tuple(packed), tuple(self._objects.items())
        )

    # -- private

    def _dirty(self) -> list[Node]:
        for node in list(self._nodes.values()):
            above = node.parent
            while node.dirty and above is not None:
                self._writable(above)
                above = above.parent
        return [node for node in self._nodes.values() if node.dirty]

    def _writable(self, node: Node) -> Node:
        if not node.dirty:
            node.catalog.make_writable()
            node.dirty = True
        return node

    def _remove(self, path: str, entry: Dirent) -> None:
        if entry.is_directory and not entry.mountpoint:
            for child in self.listing(path):
                self._remove(f"{path}/{child.name}", child)
        node = self._writable(self.holder(path))
        if entry.mountpoint:
            node.catalog.remove_nested(path, self._totals(path))
            self._forget(path)
        node.catalog.remove(path)
        if entry.is_directory:
            self._link(parent_of(path), -1)

    def _unlink(self, directory: str, group: int) -> None:
        """One link of a group is gone: the others count one less, and a last one is no group any more."""
        catalog = self.inside(directory).catalog
        for entry in self.listing(directory):
            if entry.hardlink_group == group:
                left = entry.linkcount - 1
                catalog.update(
                    f"{directory}/{entry.name}", entry.changed(linkcount=left, hardlink_group=group if left > 1 else 0)
                )

    def _require_free(self, path: str) -> None:
        parent = self.lookup(parent_of(path))
        if parent is None or not parent.is_directory:
            what = "does not exist" if parent is None else "is not a directory"
            raise DestinationError(path, f"its parent {parent_of(path) or '/'} {what}")
        if self.lookup(path) is not None:
            raise DestinationError(path, "something stands there already")

    def _mount(self, parent: Node, path: str, entry: Dirent) -> None:
        parent.catalog.add(path, _mountpoint(path, entry))
        self._link(parent_of(path), 1)

    def _totals(self, path: str) -> Counts:
        """What the parent's counters hold for the catalog mounted at ``path``."""
        return self.inside(path).known

    def _forget(self, path: str) -> None:
        for opened in [key for key in self._nodes if is_below(key, path)]:
            self._nodes.pop(opened).catalog.close()

    def _rows_of_directory(self, path: str) -> list[tuple[Node, Dirent]]:
        nodes = {id(node): node for node in (self.holder(path), self.inside(path))}
        rows = [(node, node.catalog.lookup(path)) for node in nodes.values()]
        return [(node, row) for node, row in rows if row is not None]

    def _link(self, path: str, change: int) -> None:
        for node, row in self._rows_of_directory(path):
            self._writable(node).catalog.update(path, row.changed(linkcount=row.linkcount + change))


def _mountpoint(path: str, entry: Dirent) -> Dirent:
    return entry.changed(name=name_of(path), mountpoint=True, nested_root=False)
