"""A file catalog: the SQLite database of one directory tree's entries, held in memory.

Format: docs/formats.md, catalogs. A catalog knows its own rows only; how catalogs hang together is told in
``edit.py``. Writers keep the statistics exact row by row, so that closing a catalog never has to count.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from include.cvmfs.compression import compress, decompress
from include.cvmfs.counters import NAMES, Counts, Statistics
from include.cvmfs.dirent import COLUMNS, Chunk, Dirent
from include.cvmfs.errors import CatalogError, ObjectDamaged
from include.cvmfs.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes, path_hash

SCHEMA = 2.5
SCHEMA_REVISION = 7
DEFAULT_TTL_S = 240
MARKER = ".cvmfscatalog"
AUTO_MARKER = ".cvmfsautocatalog"  # beside the other one: made by itself, and may go by itself
_T = TypeVar("_T")
_VACUUM_FREE_SHARE = 0.2
_LATE_COLUMNS = {"xattr": "BLOB", "mtimens": "INTEGER"}  # of schema revisions 2 and 7

_BIND_TABLE = (
    "CREATE TABLE IF NOT EXISTS bind_mountpoints"
    " (path TEXT, sha1 TEXT, size INTEGER, CONSTRAINT pk_bind_mountpoints PRIMARY KEY (path))"
)
_TABLES = f"""
CREATE TABLE catalog (
  md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER, parent_2 INTEGER, hardlinks INTEGER, hash BLOB,
  size INTEGER, mode INTEGER, mtime INTEGER, mtimens INTEGER, flags INTEGER, name TEXT, symlink TEXT,
  uid INTEGER, gid INTEGER, xattr BLOB, CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
CREATE TABLE chunks (
  md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER, hash BLOB,
  CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size),
  FOREIGN KEY (md5path_1, md5path_2) REFERENCES catalog(md5path_1, md5path_2));
CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT, size INTEGER, CONSTRAINT pk_nested_catalogs PRIMARY KEY (path));
{_BIND_TABLE};
CREATE TABLE statistics (counter TEXT, value INTEGER, CONSTRAINT pk_statistics PRIMARY KEY (counter));
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
INSERT INTO properties VALUES ('schema', '{SCHEMA}'), ('schema_revision', '{SCHEMA_REVISION}'), ('revision', '0');
"""
_INSERT = f"INSERT INTO catalog (md5path_1, md5path_2, parent_1, parent_2, {', '.join(COLUMNS)}) VALUES ({'?,' * 15}?)"
_CHUNK = "INSERT INTO chunks VALUES (?,?,?,?,?)"


@dataclass(frozen=True, slots=True)
class NestedRef:
    """A row of ``nested_catalogs``: mount path, hash of the catalog, size of its SQLite file in bytes (0: unknown)."""

    path: str
    hash: ObjectHash
    size: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A catalog as it is stored: its hash, its object's bytes, and the size of the SQLite file inside."""

    hash: ObjectHash
    data: bytes
    size: int

    @classmethod
    def of(cls, database: bytes, algorithm: Algorithm = Algorithm.SHA1) -> Packed:
        data = compress(database)
        return cls(hash_bytes(data, algorithm, CATALOG), data, len(database))


def parent_of(path: str) -> str:
    """The parent of an absolute path; the root is ``""`` and the parent of what stands in it."""
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


class Catalog:
    """One catalog. ``path`` is its mount path (``""`` for the repository's root catalog)."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._db = connection
        self.path = path
        self._columns = {row[1] for row in self._all("PRAGMA table_info(catalog)")}
        self._select = ", ".join(name if name in self._columns else f"NULL AS {name}" for name in COLUMNS)
        self._statistics = self._read_statistics()

    # -- opening and closing

    @classmethod
    def create(cls, path: str, root_entry: Dirent) -> Catalog:
        """A new catalog with the entry of its own root directory; nested ones get ``root_prefix``."""
        catalog = cls(_open(_template()), path)
        if path:
            catalog.set_property("root_prefix", path)
        catalog.add(path, root_entry.changed(nested_root=bool(path), mountpoint=False, name=name_of(path)))
        return catalog

    @classmethod
    def load(cls, database: bytes) -> Catalog:
        """Open the bytes of a catalog's SQLite file. Raises CatalogError for what is none, or of a newer schema."""
        if not database.startswith(b"SQLite format 3\0"):
            raise CatalogError("", "the object is not an SQLite file")
        connection = _open(database)
        try:
            properties = dict(connection.execute("SELECT key, value FROM properties"))
            schema = float(properties.get("schema", 1.0))
        except (sqlite3.Error, ValueError, TypeError) as fault:
            raise CatalogError("", f"not a catalog: {fault}") from fault
        path = str(properties.get("root_prefix") or "")
        if abs(schema - SCHEMA) > 0.0005:
            raise CatalogError(path, f"has schema {schema}, this program reads {SCHEMA}")
        return cls(connection, path)

    @classmethod
    def unpack(cls, data: bytes, expected: ObjectHash) -> Catalog:
        """Open a stored object that must be what its name says. Raises ObjectDamaged, FormatError, CatalogError."""
        if hash_bytes(data, expected.algorithm).digest != expected.digest:
            raise ObjectDamaged(expected.key)
        return cls.load(decompress(data))

    def pack(self, algorithm: Algorithm = Algorithm.SHA1) -> Packed:
        """Write the statistics down and return the catalog as an object; equal steps give equal bytes."""
        return Packed.of(self.to_bytes(), algorithm)

    def to_bytes(self) -> bytes:
        """The SQLite file, statistics written, free pages dropped when there are many."""
        rows = [(f"self_{n}", getattr(self._statistics.own, n)) for n in NAMES]
        rows += [(f"subtree_{n}", getattr(self._statistics.below, n)) for n in NAMES]
        self._many("INSERT OR REPLACE INTO statistics VALUES (?,?)", rows)
        (free,), (pages,) = self._one("PRAGMA freelist_count") or (0,), self._one("PRAGMA page_count") or (1,)
        if free > pages * _VACUUM_FREE_SHARE:
            self._run("VACUUM")
        return self._db.serialize()

    def close(self) -> None:
        self._db.close()

    # -- properties

    def get_property(self, key: str) -> str | None:
        row = self._one("SELECT value FROM properties WHERE key = ?", key)
        return None if row is None or row[0] is None else str(row[0])

    def set_property(self, key: str, value: object) -> None:
        self._run("INSERT OR REPLACE INTO properties VALUES (?,?)", key, str(value))

    def _number(self, key: str, default: int = 0) -> int:
        text = self.get_property(key)
        try:
            return default if text is None else int(text)
        except ValueError:
            raise CatalogError(self.path, f"property {key} is {text!r}, not a number") from None

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
        return self._statistics

    @property
    def root_entry(self) -> Dirent:
        entry = self.lookup(self.path)
        if entry is None:
            raise CatalogError(self.path, "the catalog has no entry for its own root")
        return entry

    def lookup(self, path: str) -> Dirent | None:
        row = self._one(f"SELECT {self._select} FROM catalog WHERE md5path_1=? AND md5path_2=?", *path_hash(path))
        return None if row is None else Dirent.from_row(row)

    def listing(self, path: str) -> list[Dirent]:
        """The entries directly below the directory, in name order (bytes)."""
        sql = f"SELECT {self._select} FROM catalog WHERE parent_1=? AND parent_2=? ORDER BY name"
        # The root entry of the root catalog has parent (0,0); a nested root's parent lies in another catalog.
        return [Dirent.from_row(row) for row in self._all(sql, *path_hash(path))]

    def row_count(self) -> int:
        return int((self._one("SELECT count(*) FROM catalog") or (0,))[0])

    def chunks(self, path: str, entry: Dirent) -> tuple[Chunk, ...]:
        sql = "SELECT offset, size, hash FROM chunks WHERE md5path_1=? AND md5path_2=? ORDER BY offset, size"
        return tuple(Chunk(o, s, entry.chunk_hash(bytes(h))) for o, s, h in self._all(sql, *path_hash(path)))

    def nested(self) -> list[NestedRef]:
        return self._references("SELECT path, sha1, size FROM nested_catalogs ORDER BY path")

    def nested_at(self, path: str) -> NestedRef | None:
        rows = self._references("SELECT path, sha1, size FROM nested_catalogs WHERE path = ?", path)
        return rows[0] if rows else None

    def bind_mountpoints(self) -> list[str]:
        if not self._one("SELECT 1 FROM sqlite_master WHERE name = 'bind_mountpoints'"):
            return []
        return [str(row[0]) for row in self._all("SELECT path FROM bind_mountpoints ORDER BY path")]

    def object_hashes(self) -> Iterator[tuple[ObjectHash, int | None]]:
        """Every data object that the rows refer to, with its uncompressed size in bytes; external files apart."""
        sql = "SELECT hash, flags, size FROM catalog WHERE hash IS NOT NULL AND length(hash) > 0 AND (flags & 128) = 0"
        algorithms = (Algorithm.SHA1, Algorithm.RMD160, Algorithm.SHAKE128)
        for digest, flags, size in self._all(sql):
            yield ObjectHash(bytes(digest), algorithms[flags >> 8 & 7]), size
        joined = "chunks JOIN catalog USING (md5path_1, md5path_2)"
        sql = f"SELECT chunks.hash, flags, chunks.size FROM {joined} WHERE (flags & 128) = 0"
        for digest, flags, size in self._all(sql):
            yield ObjectHash(bytes(digest), algorithms[flags >> 8 & 7], "P"), size

    # -- writing

    def add(self, path: str, entry: Dirent, chunks: Iterable[Chunk] = ()) -> None:
        """Add an entry. Raises CatalogError if the path is there already."""
        pieces = tuple(chunks)
        here, parent = path_hash(path), path_hash(parent_of(path)) if path else (0, 0)
        self._run(_INSERT, *here, *parent, *entry.to_row())
        self._many(_CHUNK, [(*here, c.offset, c.size, c.hash.digest) for c in pieces])
        self._count(Counts.of(entry, len(pieces)))

    def add_rows(self, rows: Iterable[tuple[Any, ...]], chunks: Iterable[tuple[Any, ...]], counts: Counts) -> None:
        """Add many rows that are in column order already, with what they add to this catalog's own counters."""
        self._run("BEGIN")
        self._many(_INSERT, rows)
        self._many(_CHUNK, chunks)
        self._run("COMMIT")
        self._count(counts)

    def update(self, path: str, entry: Dirent) -> None:
        """Replace an entry's attributes; its name, place and chunks stay."""
        before = self.lookup(path)
        if before is None:
            raise CatalogError(path, "no such entry to change")
        settings = ", ".join(f"{name}=?" for name in COLUMNS)
        self._run(
            f"UPDATE catalog SET {settings} WHERE md5path_1=? AND md5path_2=?",
            *entry.to_row(),
            *path_hash(path),
        )
        pieces = len(self.chunks(path, before)) if before.chunked else 0
        self._count(Counts.of(entry, pieces) - Counts.of(before, pieces))

    def remove(self, path: str) -> Dirent:
        """Remove one entry and its chunks; what lies below a directory is the caller's to remove first."""
        entry = self.lookup(path)
        if entry is None:
            raise CatalogError(path, "no such entry to remove")
        here = path_hash(path)
        pieces = self._run("DELETE FROM chunks WHERE md5path_1=? AND md5path_2=?", *here)
        self._run("DELETE FROM catalog WHERE md5path_1=? AND md5path_2=?", *here)
        self._count(Counts() - Counts.of(entry, pieces))
        return entry

    def set_nested(self, reference: NestedRef, grown: Counts) -> None:
        """Point a mountpoint at a catalog; ``grown``: what this adds to the counters below (self and subtree)."""
        new = self.nested_at(reference.path) is None
        row = (reference.path, str(reference.hash), reference.size)
        self._run("INSERT OR REPLACE INTO nested_catalogs VALUES (?,?,?)", *row)
        self._statistics = Statistics(self._statistics.own + Counts(nested=int(new)), self._statistics.below + grown)

    def remove_nested(self, path: str, shrunk: Counts) -> None:
        """Forget a nested catalog; ``shrunk``: its own counters and those below it."""
        if not self._run("DELETE FROM nested_catalogs WHERE path = ?", path):
            raise CatalogError(path, "no such nested catalog to remove")
        self._statistics = Statistics(self._statistics.own - Counts(nested=1), self._statistics.below - shrunk)

    def next_hardlink_group(self) -> int:
        return int((self._one("SELECT max(hardlinks) >> 32 FROM catalog") or (0,))[0] or 0) + 1

    def make_writable(self) -> None:
        """Bring a catalog of an older revision of the schema up to the one that we write."""
        for column, kind in _LATE_COLUMNS.items():
            if column not in self._columns:
                self._run(f"ALTER TABLE catalog ADD COLUMN {column} {kind}")
        if "size" not in {row[1] for row in self._all("PRAGMA table_info(nested_catalogs)")}:
            self._run("ALTER TABLE nested_catalogs ADD COLUMN size INTEGER DEFAULT 0")
        self._run(_BIND_TABLE)
        if int(float(self.get_property("schema_revision") or 0)) < SCHEMA_REVISION:
            self.set_property("schema_revision", SCHEMA_REVISION)
        self._columns |= set(_LATE_COLUMNS)
        self._select = ", ".join(COLUMNS)

    # -- private

    def _count(self, change: Counts) -> None:
        self._statistics = Statistics(self._statistics.own + change, self._statistics.below)

    def _read_statistics(self) -> Statistics:
        values = {str(k): int(v or 0) for k, v in self._all("SELECT counter, value FROM statistics")}
        own = Counts(**{n: values.get(f"self_{n}", 0) for n in NAMES})
        return Statistics(own, Counts(**{n: values.get(f"subtree_{n}", 0) for n in NAMES}))

    def stored_counter_names(self) -> set[str]:
        """The counters that the file really holds; readers of a damaged catalog want to know."""
        return {str(row[0]) for row in self._all("SELECT counter FROM statistics")}

    def _references(self, sql: str, *values: object) -> list[NestedRef]:
        return [
            NestedRef(str(p), ObjectHash.parse(str(h), suffix=CATALOG), int(s or 0))
            for p, h, s in self._all(sql, *values)
        ]

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._guarded(lambda: self._db.execute(sql, values).fetchall())

    def _one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._guarded(lambda: self._db.execute(sql, values).fetchone())
        return row

    def _run(self, sql: str, *values: object) -> int:
        return self._guarded(lambda: self._db.execute(sql, values).rowcount)

    def _many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._guarded(lambda: self._db.executemany(sql, rows))

    def _guarded(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except sqlite3.IntegrityError as fault:
            raise CatalogError(self.path, f"two entries at one path ({fault})") from fault
        except (sqlite3.Error, OverflowError) as fault:
            raise CatalogError(self.path, f"damaged catalog: {fault}") from fault


def _open(database: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(database)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


@cache
def _template() -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript("BEGIN;" + _TABLES + "COMMIT;")
    connection.executemany(
        "INSERT INTO statistics VALUES (?,0)", [(f"{half}_{n}",) for half in ("self", "subtree") for n in NAMES]
    )
    image = connection.serialize()
    connection.close()
    return image
