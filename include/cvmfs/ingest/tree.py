"""From the entries of a tree in path order to nested catalogs, stored bottom-up with exact counters, within limits.

Format: docs/formats.md, catalogs and statistics counters. Only the catalogs on the way to the current entry are open.
Equal trees give equal bytes: rows in path order, revision 1, no predecessor, times of the tree itself.
"""

from __future__ import annotations

import hashlib
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Any

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.format.catalog import Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.schema import Counts, Statistics
from include.cvmfs.ingest.autocatalog import Cuts, cut
from include.cvmfs.ingest.spool import Row, Spool
from include.cvmfs.sources.source import OutlinedSource, SourceLimits, TreeSource, printable


def survey(
    source: TreeSource, destination: str, *, limits: SourceLimits, cuts: Cuts, spool: Callable[[], Spool]
) -> None:
    """Do nothing for a source that can only be read once; else raise SourceError for what is beyond a limit.

    ``spool`` makes the spool that the tree is going to be taken with. Names are counted first, which costs little; only
    a tree that has more of them than a catalog may hold is gone through in full.
    """
    if not isinstance(source, OutlinedSource):
        return
    members = 1
    for path, size in source.outline(sizes=bool(limits.file_bytes)):
        members += 1
        check_member(path, members, size, limits, source.name)
    if not cuts.entries or members < cuts.entries:
        return
    with spool() as rows:
        for entry, _ in source.entries():
            rows.add(entry)
        rows.complete()
        cut(rows, destination, cuts, lambda: b"")


def check_member(path: str, members: int, size: int, limits: SourceLimits, source: str) -> None:
    """Raise SourceError for one member too many, or a file of more bytes than one may have."""
    if limits.file_bytes and size > limits.file_bytes:
        problem = f"has {size} bytes, more than the {limits.file_bytes} that one file may have"
        raise beyond(path, f"{problem}; split it, leave it out, or raise the limit", source)
    if members > limits.members:
        raise beyond(
            path, f"is beyond the limit of {limits.members} members; split the tree or raise the limit", source
        )


def beyond(path: str, detail: str, source: str) -> SourceError:
    return SOURCE_LIMIT_EXCEEDED(printable(path), f"{detail} (artifact {printable(source)})")


DIRECTORY_BYTES = 4096  # a directory's size in its row, whatever it is in the source's file system
_BATCH = 1000
_PACKED_AT_ONCE = 2  # catalogs, by threads: compressing leaves the interpreter to the maker of the next one
_GROUP_BITS = 32
_split = struct.Struct("<qq").unpack


@dataclass(frozen=True, slots=True)
class BuiltTree:
    """A tree whose catalogs are stored: its root catalog, the entry of its root directory, and counters."""

    reference: NestedRef
    root_entry: Dirent
    statistics: Statistics
    catalogs: int


def build_tree(
    spool: Spool,
    destination: str,
    *,
    algorithm: Algorithm,
    compression: Compression,
    put: Callable[[ObjectHash, bytes], None],
    layout: Layout = Layout.PLAIN,
) -> BuiltTree:
    """Make the catalogs of a complete spool for the absolute path ``destination`` and hand them to ``put``."""
    with ThreadPoolExecutor(_PACKED_AT_ONCE, thread_name_prefix="pack-catalog") as pool:
        builder = _Builder(spool, destination.encode(), algorithm, compression, put, layout, pool)
        for row in spool.rows():
            builder.add(row)
        return builder.finish()


@dataclass(frozen=True, slots=True)
class _Closed:
    """A catalog that is complete; it is compressed and stored beside the making of the next one."""

    path: str
    packed: Future[PackedCatalog]
    statistics: Statistics

    @property
    def reference(self) -> NestedRef:
        packed = self.packed.result()
        return NestedRef(self.path, packed.hash, packed.size)


@dataclass(slots=True)
class _Catalog:
    """A catalog being written: rows wait to be added many at a time, numbers are summed up at their side."""

    catalog: Catalog
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    pieces: list[tuple[Any, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    newest: int = 0
    below: list[_Closed] = field(default_factory=list)

    def flush(self) -> None:
        self.catalog.add_rows(self.rows, self.pieces, Counts(**self.counts))
        for waiting in (self.rows, self.pieces, self.counts):
            waiting.clear()


@dataclass(slots=True)
class _Folder:
    """An open directory: where it is, the catalog of its entries, and its hard-linked files with their numbers."""

    key: bytes
    path: bytes
    path_hash: tuple[int, int]
    holder: _Catalog
    is_root: bool
    groups: dict[int, list[int]]


@dataclass
class _Builder:
    _spool: Spool
    _destination: bytes
    _algorithm: Algorithm
    _compression: Compression
    _put: Callable[[ObjectHash, bytes], None]
    _layout: Layout
    _pool: ThreadPoolExecutor

    def __post_init__(self) -> None:
        self._packing = BoundedSemaphore(2 * _PACKED_AT_ONCE)
        self._subdirectories = _Ahead(self._spool.subdirectories())
        self._link_groups = _Ahead(self._spool.link_groups())
        self._open: list[_Folder] = []
        self._catalogs = 0
        self._root_entry: Dirent | None = None
        hashed = ObjectHash(bytes(20), self._algorithm)
        whole = Dirent("", stat.S_IFREG, hash=hashed, algorithm=self._algorithm, compression=self._compression)
        self._file_flags = whole.flags
        self._chunked_flags = whole.changed(hash=None, chunked=True).flags
        # External files are fetched as they are.
        external = whole.changed(external=True, compression=Compression.NONE)
        self._external_flags = external.flags
        self._external_chunked_flags = external.changed(hash=None, chunked=True).flags
        self._special_flags = Dirent("", stat.S_IFIFO).flags
        self._symlink_flags = Dirent("", stat.S_IFLNK).flags
        self._directory_flags = Dirent("", stat.S_IFDIR).flags
        self._mountpoint_flags = Dirent("", stat.S_IFDIR, mountpoint=True).flags

    def add(self, row: Row) -> None:
        key, parent, mode, size, mtime, uid, gid, digest, symlink, file, chunks, mtime_ns, xattr, external, linked = row
        if not key:
            self._enter_root(row)
            return
        above = key[:parent]
        while self._open[-1].key != above:
            self._leave()
        folder = self._open[-1]
        holder, counts = folder.holder, folder.holder.counts
        raw_name = key[parent + 1 :]
        path = folder.path + b"/" + raw_name
        here = _split(hashlib.md5(path, usedforsecurity=False).digest())
        name = raw_name.decode()
        hardlinks = 1
        if stat.S_ISDIR(mode):
            nested = key in self._spool.markers
            hardlinks = 2 + sum(count for _, count in self._subdirectories.at(key))
            size, flags = DIRECTORY_BYTES, self._mountpoint_flags if nested else self._directory_flags
            counts["dir"] += 1
        elif stat.S_ISLNK(mode):
            size, flags = len(symlink.encode()), self._symlink_flags
            counts["symlink"] += 1
        elif not stat.S_ISREG(mode):
            flags = self._special_flags
            counts["special"] += 1
        else:
            flags = self._chunked_flags if chunks else self._file_flags
            counts["regular"] += 1
            counts["file_size"] += size
            if external:
                flags = self._external_chunked_flags if chunks else self._external_flags
                counts["external"] += 1
                counts["external_file_size"] += size
            if linked:
                hardlinks = self._hardlinks(folder, file)
            if chunks:
                counts["chunked"] += 1
                counts["chunks"] += chunks
                counts["chunked_size"] += size
                holder.pieces += [(*here, *piece) for piece in self._spool.pieces(file)]
        if xattr is not None:
            counts["xattr"] += 1
        if mtime > holder.newest:
            holder.newest = mtime
        columns = (hardlinks, digest, size, mode, mtime, mtime_ns, flags, name, symlink, uid, gid, xattr)
        holder.rows.append((*here, *folder.path_hash, *columns))
        if len(holder.rows) >= _BATCH:
            holder.flush()
        if stat.S_ISDIR(mode):
            self._enter(row, path, here, _nested_entry(row, name, hardlinks) if nested else None)

    def finish(self) -> BuiltTree:
        while len(self._open) > 1:
            self._leave()
        closed = self._close(self._open.pop())
        assert self._root_entry is not None  # noqa: S101 - a complete spool begins with its root
        return BuiltTree(closed.reference, self._root_entry, closed.statistics, self._catalogs)

    def _enter_root(self, row: Row) -> None:
        links = 2 + sum(count for _, count in self._subdirectories.at(row.key))
        name = self._destination.rpartition(b"/")[2].decode()
        self._root_entry = _nested_entry(row, name, links)
        here = _split(hashlib.md5(self._destination, usedforsecurity=False).digest())
        self._enter(row, self._destination, here, self._root_entry)

    def _enter(self, row: Row, path: bytes, path_hash: tuple[int, ...], nested_root: Dirent | None) -> None:
        if nested_root is not None:
            self._catalogs += 1
            holder = _Catalog(Catalog.create(path.decode(), nested_root, self._layout), newest=row.mtime)
        else:
            holder = self._open[-1].holder
        groups = {file: [names, 0] for _, file, names in self._link_groups.at(row.key)}
        first, second = path_hash
        self._open.append(_Folder(row.key, path, (first, second), holder, nested_root is not None, groups))

    def _leave(self) -> None:
        folder = self._open.pop()
        if not folder.is_root:
            return
        above = self._open[-1].holder
        above.below.append(self._close(folder))
        above.newest = max(above.newest, folder.holder.newest)

    def _close(self, folder: _Folder) -> _Closed:
        holder = folder.holder
        holder.flush()
        catalog = holder.catalog
        for closed in holder.below:
            catalog.set_nested(closed.reference, closed.statistics.total)
        catalog.set_property("revision", 1)
        catalog.set_property("last_modified", holder.newest)
        database, statistics = catalog.to_bytes(), catalog.statistics
        catalog.close()
        self._packing.acquire()
        return _Closed(folder.path.decode(), self._pool.submit(self._pack, database), statistics)

    def _pack(self, database: bytes) -> PackedCatalog:
        try:
            packed = PackedCatalog.of(database, self._algorithm)
            self._put(packed.hash, packed.data)
        finally:
            self._packing.release()
        return packed

    def _hardlinks(self, folder: _Folder, file: int) -> int:
        """Names of one file in one directory are a group; groups are numbered as they come up in the catalog."""
        names_and_group = folder.groups.get(file)
        if names_and_group is None:
            return 1
        names, group = names_and_group
        if not group:
            folder.holder.groups += 1
            group = names_and_group[1] = folder.holder.groups
        return group << _GROUP_BITS | names


def _nested_entry(row: Row, name: str, links: int) -> Dirent:
    return Dirent(
        name=name, mode=row.mode, size=DIRECTORY_BYTES, mtime=row.mtime, uid=row.uid, gid=row.gid, linkcount=links,
        xattr=row.xattr, mtime_ns=row.mtime_ns,
    )  # fmt: skip


class _Ahead:
    """Tuples that begin with a key, in the order of keys: gives those of one key after the other."""

    def __init__(self, tuples: Iterator[tuple[Any, ...]]) -> None:
        self._tuples = tuples
        self._next = next(tuples, None)

    def at(self, key: bytes) -> list[tuple[Any, ...]]:
        """All tuples of ``key``; keys must be asked for in order, and none with tuples left out."""
        tuples = []
        while self._next is not None and self._next[0] == key:
            tuples.append(self._next)
            self._next = next(self._tuples, None)
        return tuples
