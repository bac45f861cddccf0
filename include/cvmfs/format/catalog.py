"""A file catalog: the SQLite database of one directory tree's entries, held in memory.

Format: docs/formats.md, catalogs. A catalog knows its own rows only; how catalogs hang together is described in
``edit.py``. Writers keep the statistics exact row by row, so that closing a catalog never has to count.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from include.cvmfs.errors import CatalogError, FormatError
from include.cvmfs.format.dirent import Chunk, Dirent, algorithm_of, digest_of
from include.cvmfs.format.hashes import CATALOG, PARTIAL, Algorithm, ObjectHash, hash_bytes, path_hash
from include.cvmfs.format.layout import KEY, MTIME_NS, CatalogContents, Layout, Tables, shape_of
from include.cvmfs.format.objects import Compression, compress_database
from include.cvmfs.format.paths import name_of, parent_of
from include.cvmfs.format.schema import (
    NAMES,
    CatalogFile,
    Counts,
    Statistics,
    count,
    empty_image,
    is_upgraded,
    open_image,
    read_properties,
    read_schema,
    relaid,
    revision_fault,
    schema_fault,
    upgrade,
)

DEFAULT_TTL_S = 240
MARKER = ".cvmfscatalog"
AUTO_MARKER = ".cvmfsautocatalog"  # beside the other one: made by itself, and may go by itself
_VACUUM_FREE_SHARE = 0.2
Mark = dict[str, Any]
_TEXT = "CAST(? AS TEXT)"  # a name that is not UTF-8 is bound as its bytes
_CHUNK = "INSERT INTO chunks (md5path_1, md5path_2, offset, size, hash) VALUES (?,?,?,?,?)"


@dataclass(frozen=True, slots=True)
class NestedRef:
    """A row of ``nested_catalogs``: mount path, hash of the catalog, size of its SQLite file in bytes (0: unknown)."""

    path: str
    hash: ObjectHash
    size: int


class CatalogObject(NamedTuple):
    """A data object: the size is that of its content in bytes, None where the row has none."""

    name: ObjectHash
    size: int | None
    compression: Compression


@dataclass(frozen=True, slots=True)
class PackedCatalog:
    """A catalog as it is stored: its hash, its object's bytes, and the size of the SQLite file inside."""

    hash: ObjectHash
    data: bytes
    size: int

    @classmethod
    def of(cls, database: bytes, algorithm: Algorithm = Algorithm.SHA1) -> PackedCatalog:
        data = compress_database(database)
        return cls(hash_bytes(data, algorithm, CATALOG), data, len(database))


class Catalog(CatalogFile):
    """A catalog. ``path`` is its mount path (``""`` for the repository's root catalog)."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, name: ObjectHash | None = None, tables: Tables | None = None
    ) -> None:
        super().__init__(connection, path, name)
        self._writable = False
        self._contents: CatalogContents | None = None
        self._uncounted: tuple[str, ...] = ()
        self._counters: Statistics | None = None
        self._stored: frozenset[tuple[str, int]] = frozenset()  # rows of the file's counters
        self._shape = self._guarded(lambda: shape_of(self._db, tables))

    # -- opening and closing

    @classmethod
    def create(cls, path: str, root_entry: Dirent, layout: Layout = Layout.PLAIN) -> Catalog:
        """A new catalog with the entry of its own root directory; nested ones get ``root_prefix``."""
        catalog = cls(open_image(empty_image(layout)), path)
        catalog._writable = True
        catalog.statistics  # noqa: B018
        if path:
            catalog.set_property("root_prefix", path)
        catalog.add(path, root_entry.changed(nested_root=bool(path), mountpoint=False, name=name_of(path)))
        return catalog

    @classmethod
    def load(cls, database: bytes, name: ObjectHash | None = None) -> Catalog:
        """Open the bytes of a catalog's SQLite file; ``name`` is what errors call it.

        Raises CatalogError for what is not a catalog, or has a newer schema.
        """
        if not database.startswith(b"SQLite format 3\0"):
            raise CatalogError("", "the object is not an SQLite file")
        connection = open_image(database)
        try:
            tables = read_schema(connection)
            properties = read_properties(connection)
            fault = schema_fault(properties)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise CatalogError("", f"not a catalog: {error}") from error
        path = str(properties.get("root_prefix") or "")
        if fault is not None:
            raise CatalogError(path, f"the catalog {fault}")
        catalog = cls(connection, path, name, tables)
        catalog.size = len(database)
        return catalog

    def pack(self, algorithm: Algorithm = Algorithm.SHA1) -> PackedCatalog:
        """Write the statistics down and return the catalog as an object; equal steps give equal bytes."""
        return PackedCatalog.of(self.to_bytes(), algorithm)

    def to_bytes(self) -> bytes:
        """The SQLite file, statistics written, free pages dropped when there are many."""
        rows = frozenset(self.statistics.rows())
        self._many("INSERT OR REPLACE INTO statistics VALUES (?,?)", sorted(rows - self._stored))
        self._stored = rows
        (free,), (pages,) = self._one("PRAGMA freelist_count") or (0,), self._one("PRAGMA page_count") or (1,)
        if free > pages * _VACUUM_FREE_SHARE:
            self._run("VACUUM")
        return self._db.serialize()

    # -- properties

    @property
    def revision(self) -> int:
        return self._number("revision")

    @property
    def last_modified(self) -> int:
        """Unix time, seconds."""
        return self._number("last_modified")

    @property
    def ttl(self) -> int:
        """Seconds."""
        return self._number("TTL", DEFAULT_TTL_S)

    @property
    def previous_revision(self) -> ObjectHash | None:
        text = self.get_property("previous_revision")
        previous = ObjectHash.parse(text, suffix=CATALOG) if text else None
        return None if previous is None or previous.is_null else previous

    # -- reading

    @property
    def statistics(self) -> Statistics:
        if self._counters is None:
            self._read_statistics()
        assert self._counters is not None  # noqa: S101 - read in the line above
        return self._counters

    @property
    def layout(self) -> Layout:
        """The order of its columns. Raises CatalogError for one that is not known."""
        if self._shape.layout is None:
            raise CatalogError(self.path, "the catalog has columns in an order that this program does not know")
        return self._shape.layout

    @property
    def root_entry(self) -> Dirent:
        entry = self.lookup(self.path)
        if entry is None:
            raise CatalogError(self.path, "the catalog has no entry for its own root")
        return entry

    @property
    def lacks_counters_below(self) -> bool:
        """Tell whether the file, of an older revision, does not have all counters of what is nested below it."""
        return bool(self.statistics and self._uncounted)

    def complete_counters(self, below: Counts) -> None:
        """Give the counters that the file lacks their values, out of what was counted in the nested catalogs."""
        counters = self.statistics.below.as_dict() | {name: getattr(below, name) for name in self._uncounted}
        self._counters = Statistics(self.statistics.own, Counts(**counters))
        self._uncounted = ()

    def lookup(self, path: str) -> Dirent | None:
        if self._contents is not None:
            row = self._contents.by_key.get(path_hash(path))
            return None if row is None else self.entry(path, row[len(KEY) :])
        sql = f"SELECT {self._shape.select} FROM catalog WHERE md5path_1=? AND md5path_2=?"
        row = self._one(sql, *path_hash(path))
        return None if row is None else self.entry(path, row)

    def listing(self, path: str) -> list[Dirent]:
        """The entries directly below the directory, in name order (bytes)."""
        sql = f"SELECT {self._shape.select} FROM catalog WHERE parent_1=? AND parent_2=? ORDER BY name"
        # The root entry of the root catalog has parent (0,0); a nested root's parent lies in another catalog.
        return [self.entry(path, row) for row in self._all(sql, *path_hash(path))]

    def entry(self, path: str, row: tuple[Any, ...]) -> Dirent:
        """A row of this catalog, columns as in ``COLUMNS``, found at ``path`` or in that directory, as a value."""
        try:
            return Dirent.from_row(row)
        except FormatError as fault:
            raise self.damaged(path, fault.detail) from fault

    def rows_in(self, path: str) -> list[tuple[Any, ...]]:
        """The rows directly below a directory in name order, unchecked: path hash, then :data:`COLUMNS`."""
        columns = f"md5path_1, md5path_2, {self._shape.select}"
        sql = f"SELECT {columns} FROM catalog WHERE parent_1=? AND parent_2=? ORDER BY name"
        return self._all(sql, *path_hash(path))

    def contents(self) -> CatalogContents:
        """All that is in it, for catalogs of few entries. It is kept until a change: lookups need no SQL then."""
        if self._contents is not None:
            return self._contents
        select, references = self._shape.select, f"SELECT 1, path, sha1, {self._shape.nested_size} FROM nested_catalogs"
        if self._shape.has_binds:
            references += " UNION ALL SELECT 2, path, sha1, size FROM bind_mountpoints"
        contents = CatalogContents(
            self._shape,
            frozenset(self._all(f"SELECT md5path_1, md5path_2, parent_1, parent_2, {select} FROM catalog")),
            frozenset(self._all(references)),
            frozenset(self._all("SELECT md5path_1, md5path_2, offset, size, hash FROM chunks")),
        )
        self._contents = None if self._writable else contents
        return contents

    def chunks(self, path: str, entry: Dirent) -> tuple[Chunk, ...]:
        sql = "SELECT offset, size, hash FROM chunks WHERE md5path_1=? AND md5path_2=? ORDER BY offset, size"
        rows = self._all(sql, *path_hash(path))
        return self._guarded(lambda: tuple(Chunk(int(o), int(s), entry.chunk_hash(digest_of(h))) for o, s, h in rows))

    def nested(self) -> list[NestedRef]:
        """Return what is mounted in it, by path; each strictly below, so that following them ends."""
        nested = self._references(f"SELECT path, sha1, {self._shape.nested_size} FROM nested_catalogs ORDER BY path")
        for reference in nested:
            if not reference.path.startswith(f"{self.path}/"):
                raise CatalogError(self.path, f"registers a nested catalog at {reference.path!r}, outside of itself")
        return nested

    def nested_at(self, path: str) -> NestedRef | None:
        if self._contents is not None:
            rows = self._referred(filter(None, [self._contents.nested.get(path)]))
        else:
            sql = f"SELECT path, sha1, {self._shape.nested_size} FROM nested_catalogs WHERE path = {_TEXT}"
            rows = self._references(sql, path)
        return rows[0] if rows else None

    def binds(self) -> list[NestedRef]:
        """The bind mountpoints with the catalogs that they show."""
        sql = "SELECT path, sha1, size FROM bind_mountpoints ORDER BY path"
        return self._references(sql) if self._shape.has_binds else []

    def bind_at(self, path: str) -> NestedRef | None:
        """The catalog that a bind mountpoint shows."""
        rows = self._references(f"SELECT path, sha1, size FROM bind_mountpoints WHERE path = {_TEXT}", path)
        return rows[0] if rows else None

    def objects(self) -> Iterator[CatalogObject]:
        """Every data object that the rows refer to; external files apart."""
        sql = "SELECT hash, flags, size FROM catalog WHERE hash IS NOT NULL AND length(hash) > 0 AND (flags & 128) = 0"
        for digest, flags, size in self._all(sql):
            yield self._object(digest, flags, size)
        joined = "chunks JOIN catalog USING (md5path_1, md5path_2)"
        sql = f"SELECT chunks.hash, flags, chunks.size FROM {joined} WHERE (flags & 128) = 0"
        for digest, flags, size in self._all(sql):
            yield self._object(digest, flags, size, PARTIAL)

    def identities(self) -> Iterator[bytes]:
        """The data objects of :meth:`objects` as ``digests.identity`` has them, each once: for millions."""
        sound = "typeof({0}) = 'blob' AND length({0}) = 20 AND (flags & 128) = 0"
        for (digest,) in self._all(f"SELECT DISTINCT hash FROM catalog WHERE {sound.format('hash')}"):
            yield digest
        joined = "chunks JOIN catalog USING (md5path_1, md5path_2)"
        sql = f"SELECT DISTINCT chunks.hash FROM {joined} WHERE {sound.format('chunks.hash')}"
        for (digest,) in self._all(sql):
            yield digest + b"P"

    # -- writing

    def add(self, path: str, entry: Dirent, chunks: Iterable[Chunk] = ()) -> None:
        """Add an entry. Raises CatalogError if the path is there already."""
        pieces = tuple(chunks)
        here, parent = path_hash(path), path_hash(parent_of(path)) if path else (0, 0)
        self._run(self._shape.insert, *here, *parent, *entry.to_row())
        self._many(_CHUNK, [(*here, c.offset, c.size, c.hash.digest) for c in pieces])
        self._count(Counts.of(entry, len(pieces)))

    def add_rows(self, rows: Iterable[tuple[Any, ...]], chunks: Iterable[tuple[Any, ...]], counts: Counts) -> None:
        """Add many rows that are in column order already, with what they add to this catalog's own counters."""
        self._run("SAVEPOINT added")  # also inside of an attempt
        self._many(self._shape.insert, rows)
        self._many(_CHUNK, chunks)
        self._run("RELEASE added")
        self._count(counts)

    def update(self, path: str, entry: Dirent) -> None:
        """Replace an entry's attributes; its name, place and chunks stay."""
        before = self.lookup(path)
        if before is None:
            raise CatalogError(path, "no such entry to change")
        self._run(self._shape.update, *path_hash(path), None, None, *entry.to_row())
        pieces = len(self.chunks(path, before)) if before.chunked else 0
        self._count(Counts.of(entry, pieces) - Counts.of(before, pieces))

    def remove(self, path: str) -> Dirent:
        """Remove one entry and its chunks; what lies below a directory is the caller's to remove first."""
        entry = self.lookup(path)
        if entry is None:
            raise CatalogError(path, "no such entry to remove")
        here = path_hash(path)
        pieces = self._run("DELETE FROM chunks WHERE md5path_1=? AND md5path_2=?", *here)
        if entry.bind and self._shape.has_binds:
            self._run(f"DELETE FROM bind_mountpoints WHERE path = {_TEXT}", path)
        self._run("DELETE FROM catalog WHERE md5path_1=? AND md5path_2=?", *here)
        self._count(Counts() - Counts.of(entry, pieces))
        return entry

    def remove_rows(self, directory: str, entries: Sequence[Dirent]) -> None:
        """Remove files of one directory that have no chunks; all of them are there."""
        keys = [path_hash(f"{directory}/{entry.name}") for entry in entries]
        self._run("SAVEPOINT removed")
        self._many("DELETE FROM catalog WHERE md5path_1=? AND md5path_2=?", keys)
        self._run("RELEASE removed")
        self._count(Counts() - Counts.sum([Counts(), *map(Counts.of, entries)]))

    def remove_tree(self, path: str) -> None:
        """Remove an entry and all rows below it; nested catalogs there must have been removed before."""
        entry = self.lookup(path)
        if entry is None:
            raise CatalogError(path, "no such entry to remove")
        gone, paths = [Counts.of(entry)], [path]
        pending = [path] if entry.is_directory else []
        while pending:
            above = pending.pop()
            for child in self.listing(above):
                here = f"{above}/{child.name}"
                gone.append(Counts.of(child))
                paths.append(here)
                if child.is_directory:
                    pending.append(here)
        keys = [path_hash(place) for place in paths]
        chunks = self._many("DELETE FROM chunks WHERE md5path_1=? AND md5path_2=?", keys)
        self._many("DELETE FROM catalog WHERE md5path_1=? AND md5path_2=?", keys)
        if self._shape.has_binds:
            self._many(f"DELETE FROM bind_mountpoints WHERE path = {_TEXT}", [(place,) for place in paths])
        self._count(Counts() - Counts(chunks=chunks) - Counts.sum(gone))

    def set_statistics(self, counted: Statistics) -> None:
        """Replace all counters by what was counted."""
        self._counters = counted

    def set_nested(self, reference: NestedRef, grown: Counts) -> None:
        """Point a mountpoint at a catalog; ``grown``: what this adds to the counters below (self and subtree)."""
        new = self.nested_at(reference.path) is None
        row = (reference.path, str(reference.hash), reference.size)
        self._run(f"INSERT OR REPLACE INTO nested_catalogs (path, sha1, size) VALUES ({_TEXT},?,?)", *row)
        self._counters = Statistics(self.statistics.own + Counts(nested=int(new)), self.statistics.below + grown)

    def remove_nested(self, path: str, shrunk: Counts) -> None:
        """Forget a nested catalog; ``shrunk``: its own counters and those below it."""
        if not self._run(f"DELETE FROM nested_catalogs WHERE path = {_TEXT}", path):
            raise CatalogError(path, "no such nested catalog to remove")
        self._counters = Statistics(self.statistics.own - Counts(nested=1), self.statistics.below - shrunk)

    def next_hardlink_group(self) -> int:
        return int((self._one("SELECT max(hardlinks) >> 32 FROM catalog") or (0,))[0] or 0) + 1

    def set_bind(self, reference: NestedRef) -> None:
        """Record what a bind mountpoint shows; no counter counts it."""
        row = (reference.path, str(reference.hash), reference.size)
        self._run(f"INSERT OR REPLACE INTO bind_mountpoints (path, sha1, size) VALUES ({_TEXT},?,?)", *row)

    def move(self, source: str, target: str) -> None:
        """Move an entry and all rows below it to another, free place of this catalog; their content stays.

        The paths of nested catalogs and bind mountpoints go along. Parents' link counts are the caller's to adapt.
        """
        entry = self.lookup(source)
        if entry is None:
            raise CatalogError(source, "no such entry to move")
        parent = path_hash(parent_of(target)) if target else (0, 0)
        rows = [(*path_hash(source), *path_hash(target), *parent)]
        pending = [(source, target, *path_hash(source))] if entry.is_directory else []
        while pending:
            above, new_above, *key = pending.pop()
            parent = path_hash(new_above)
            sql = "SELECT name, flags & 1, md5path_1, md5path_2 FROM catalog WHERE parent_1=? AND parent_2=?"
            for name, is_directory, *old in self._all(sql, *key):
                new = f"{new_above}/{name}"
                rows.append((*old, *path_hash(new), *parent))
                if is_directory:
                    here = f"{above}/{name}"
                    if (*old,) != path_hash(here):  # a row that contains itself would have no end
                        raise CatalogError(here, "its row does not match its parent and name")
                    pending.append((here, new, *old))
        where = "WHERE md5path_1=?1 AND md5path_2=?2"
        self._run("BEGIN")
        self._many(f"UPDATE catalog SET md5path_1=?3, md5path_2=?4, parent_1=?5, parent_2=?6 {where}", rows)
        self._many(f"UPDATE chunks SET md5path_1=?3, md5path_2=?4 {where}", (row[:4] for row in rows))
        new_key = path_hash(target)
        self._run(f"UPDATE catalog SET name={_TEXT} WHERE md5path_1=? AND md5path_2=?", name_of(target), *new_key)
        below = f"{source}/"
        for table in ("nested_catalogs", "bind_mountpoints"):
            paths = [str(row[0]) for row in self._all(f"SELECT path FROM {table}")]
            moved = [(target + p[len(source) :], p) for p in paths if p == source or p.startswith(below)]
            self._many(f"UPDATE {table} SET path={_TEXT} WHERE path={_TEXT}", moved)
        self._run("COMMIT")

    def move_to(self, path: str) -> None:
        """Make this the catalog of another mount path: every path in it is rewritten. Raises CatalogError."""
        source = self.path
        self.move(source, path)
        self.set_property("root_prefix", path)
        self.path = path

    def make_writable(self) -> None:
        """Bring a catalog of a revision before 6 of the schema up to that one; refuse a newer one than we write."""
        if self._writable:
            return
        self.statistics  # noqa: B018 - before a row is changed: counters that the file lacks are counted
        properties = {"schema_revision": self.get_property("schema_revision")}
        try:
            fault = revision_fault(properties)
        except (ValueError, OverflowError) as error:
            raise self.damaged(self.path, error) from error
        if fault is not None:
            raise CatalogError(self.path, f"the catalog {fault}")
        if not (self._shape.is_complete and is_upgraded(properties)):
            self._guarded(lambda: upgrade(self._db))
            self._shape = self._guarded(lambda: shape_of(self._db))
        self._writable, self._contents = True, None

    def convert(self, layout: Layout) -> int:
        """Give it another layout; how many entries lose their nanoseconds, since there is no column for them."""
        self.make_writable()
        lost = 0
        if self.layout.has_mtime_ns and not layout.has_mtime_ns:
            lost = int((self._one(f"SELECT total({MTIME_NS} <> 0) FROM catalog") or (0,))[0])
        converted = self._guarded(lambda: relaid(self._db, layout))
        self._db.close()
        self._db = converted
        self._shape = self._guarded(lambda: shape_of(self._db))
        return lost

    def mark(self) -> Mark:
        """A point to come back to: every :meth:`mark` is followed by one :meth:`settle`, and nothing else between."""
        self._run("SAVEPOINT attempt")
        return {name: value for name, value in vars(self).items() if name != "_db"}

    def settle(self, mark: Mark, *, undo: bool) -> None:
        """Keep what was done since the mark, or undo it."""
        if undo:
            self._run("ROLLBACK TO attempt")
            vars(self).update(mark)
        self._run("RELEASE attempt")

    # -- private

    def _count(self, change: Counts) -> None:
        self._counters = Statistics(self.statistics.own + change, self.statistics.below)

    def _read_statistics(self) -> None:
        """Take the counters of the file; own ones that an older revision lacks are counted."""
        self._stored = frozenset(self._all("SELECT counter, value FROM statistics"))
        values = self._guarded(lambda: {str(k): int(v or 0) for k, v in self._stored})
        absent = [n for n in NAMES if f"self_{n}" not in values]
        counted = self._guarded(lambda: count(self._db, absent)) if absent else {}
        own = Counts(**{n: counted[n] if n in counted else values[f"self_{n}"] for n in NAMES})
        nested = own.nested or self._one("SELECT 1 FROM nested_catalogs LIMIT 1")
        self._uncounted = tuple(n for n in NAMES if nested and f"subtree_{n}" not in values)
        self._counters = Statistics(own, Counts(**{n: values.get(f"subtree_{n}", 0) for n in NAMES}))

    def _references(self, sql: str, *values: object) -> list[NestedRef]:
        return self._referred(self._all(sql, *values))

    def _referred(self, rows: Iterable[tuple[Any, ...]]) -> list[NestedRef]:
        return self._guarded(
            lambda: [NestedRef(str(p), ObjectHash.parse(str(h), suffix=CATALOG), int(s or 0)) for p, h, s in rows]
        )

    def _object(self, digest: object, flags: int, size: object, suffix: str = "") -> CatalogObject:
        try:
            hash_ = ObjectHash(digest_of(digest), algorithm_of(flags), suffix)
            return CatalogObject(hash_, None if size is None else int(str(size)), Compression(flags >> 11 & 7))
        except (TypeError, ValueError, IndexError) as fault:
            raise self.damaged(self.path, fault) from fault
