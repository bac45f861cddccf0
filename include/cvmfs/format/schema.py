"""A catalog's SQLite file: its schema with its counters, older revisions of that, and statements in memory.

Format: docs/formats.md, catalogs. The order of columns is a matter of ``layout.py``: address them by name. Faults of
statements come out as CatalogError.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.dirent import Dirent, Flag
from include.cvmfs.format.hashes import ObjectHash, path_hash
from include.cvmfs.format.layout import OF_SEVERAL_FORMS, XATTR, Layout, Tables, columns_of
from include.cvmfs.format.paths import bytes_of_name, name_of_bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """Twelve counters: entries by kind, sizes in bytes. Differences may be negative."""

    regular: int = 0
    symlink: int = 0
    special: int = 0
    dir: int = 0
    nested: int = 0
    chunked: int = 0
    chunks: int = 0
    file_size: int = 0
    chunked_size: int = 0
    xattr: int = 0
    external: int = 0
    external_file_size: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) - getattr(other, name) for name in NAMES))

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in NAMES}

    @property
    def entries(self) -> int:
        """Rows of a catalog that has these counters as its own."""
        return self.regular + self.symlink + self.special + self.dir

    @classmethod
    def sum(cls, many: Iterable[Counts]) -> Counts:
        """All of them together."""
        columns = zip(*(attrgetter(*NAMES)(counts) for counts in many), strict=True)
        return cls(*map(sum, columns))

    @classmethod
    def of(cls, entry: Dirent, chunks: int = 0) -> Counts:
        """Return what one row of a catalog, with ``chunks`` rows of chunks, adds to its own counters.

        A mountpoint counts as a directory here and, as the root entry, in the nested catalog; the row of
        ``nested_catalogs`` that makes it count as nested is counted by the writer of that row.
        """
        size = entry.size if entry.is_regular else 0
        return cls(
            regular=int(entry.is_regular),
            symlink=int(entry.is_symlink),
            special=int(entry.is_special),
            dir=int(entry.is_directory),
            chunked=int(entry.chunked),
            chunks=chunks,
            file_size=size,
            chunked_size=size if entry.chunked else 0,
            xattr=int(entry.xattr is not None),
            external=int(entry.external),
            external_file_size=size if entry.external else 0,
        )


# also the names of the counters in catalogs and changesets, in the order of the fields
NAMES = (
    "regular", "symlink", "special", "dir", "nested", "chunked", "chunks", "file_size", "chunked_size", "xattr",
    "external", "external_file_size",
)  # fmt: skip


LARGEST = 1 << 53
"""More entries than a tree has, and more bytes (8 PiB) than one of its files has."""
MISCOUNTED = 1000
"""Stock tools lose count: repositories in use have counters a little below zero, without harm."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Both halves of a catalog's statistics: its own rows, and everything in the catalogs nested below it."""

    own: Counts = Counts()
    below: Counts = Counts()

    @property
    def total(self) -> Counts:
        return self.own + self.below

    def rows(self) -> list[tuple[str, int]]:
        """Return the counters as written; none leaves the range of SQLite, so that none hinders who counts further."""
        return [
            (f"{half}_{name}", max(-_MOST - 1, min(getattr(counts, name), _MOST)))
            for half, counts in (("self", self.own), ("subtree", self.below)) for name in NAMES
        ]  # fmt: skip


_MOST = (1 << 63) - 1


def absurd_counters(statistics: Statistics) -> list[str]:
    """The counters of a catalog that no tree can have, with their values."""
    return [f"{name} {value}" for name, value in statistics.rows() if not -MISCOUNTED <= value <= LARGEST]


SCHEMA = 2.5
SCHEMA_REVISION = 7
"""The newest that is written."""
_UPGRADED_TO = 6  # as by the stock tools; one more would be a column, and so another layout
_EPSILON = 0.0005
_TYPES = {"hash": "BLOB", "name": "TEXT", "symlink": "TEXT", XATTR: "BLOB"}  # all others are numbers
_BIND_TABLE = (
    "CREATE TABLE IF NOT EXISTS bind_mountpoints"
    " (path TEXT, sha1 TEXT, size INTEGER, CONSTRAINT pk_bind_mountpoints PRIMARY KEY (path))"
)
_STATISTICS_TABLE = (
    "CREATE TABLE IF NOT EXISTS statistics"
    " (counter TEXT, value INTEGER, CONSTRAINT pk_statistics PRIMARY KEY (counter))"
)
_TABLES = f"""
CREATE TABLE catalog ({{columns}}, CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
CREATE TABLE chunks (
  md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER, hash BLOB,
  CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size),
  FOREIGN KEY (md5path_1, md5path_2) REFERENCES catalog(md5path_1, md5path_2));
CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT, size INTEGER, CONSTRAINT pk_nested_catalogs PRIMARY KEY (path));
{_BIND_TABLE};
{_STATISTICS_TABLE};
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
INSERT INTO properties VALUES ('schema', '{SCHEMA}'), ('schema_revision', '{{revision}}'), ('revision', '0');
"""  # noqa: S608
_TYPE = "(mode & 61440)"
_REGULAR = f"{_TYPE} = 32768"
# What each counter of a catalog's own rows counts, as an aggregate over the table catalog; the others have their own.
_COUNTED = {
    "regular": f"total({_REGULAR})",
    "symlink": f"total({_TYPE} = 40960)",
    "special": f"total({_TYPE} NOT IN (32768, 40960, 16384))",
    "dir": f"total({_TYPE} = 16384)",
    "chunked": "total(flags & 64 <> 0)",
    "file_size": f"total(CASE WHEN {_REGULAR} THEN size END)",
    "chunked_size": f"total(CASE WHEN flags & 64 <> 0 AND {_REGULAR} THEN size END)",
    "xattr": "count(xattr)",
    "external": "total(flags & 128 <> 0)",
    "external_file_size": f"total(CASE WHEN flags & 128 <> 0 AND {_REGULAR} THEN size END)",
}
_BYTES = "CAST(name AS BLOB)"
# Rows that can be in no revision. What is rare comes last: a catalog has millions of rows.
_ROW_FAULTS = {
    "names that no directory may have": (
        f"catalog WHERE length({_BYTES}) > 255 OR name IN ('.', '..') OR typeof(name) <> 'text' OR name GLOB '*/*'"
        f" OR (length({_BYTES}) <> length(name) AND instr({_BYTES}, x'00'))"
        f" OR (length({_BYTES}) = 0 AND (parent_1 <> 0 OR parent_2 <> 0))"
    ),
    "entries of a size or type that no file has": (
        f"catalog WHERE typeof(flags) <> 'integer' OR typeof(size) <> 'integer' OR size NOT BETWEEN 0 AND {LARGEST}"
    ),
    "hashes of a wrong form": (
        "catalog WHERE (length(hash) <> 20 OR typeof(hash) <> 'blob' OR (flags >> 8) & 7 > 2)"
        " AND length(hash) > 0 AND flags & 128 = 0"
    ),
    "chunks with hashes of a wrong form": (
        "chunks LEFT JOIN catalog USING (md5path_1, md5path_2) WHERE typeof(chunks.hash) <> 'blob'"
        " OR length(chunks.hash) <> 20 OR (flags & 128 = 0 AND (flags >> 8) & 7 > 2)"
    ),
    "mountpoints without a nested catalog": (
        "(SELECT 1 FROM catalog WHERE flags & 2 LIMIT -1 OFFSET (SELECT count(*) FROM nested_catalogs))"
    ),
}
_ROWS = {"nested": "nested_catalogs", "chunks": "chunks"}


def open_image(database: bytes) -> sqlite3.Connection:
    """An SQLite file in memory; its schema may call nothing. Usable from any thread, one at a time."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.text_factory = name_of_bytes
    connection.deserialize(database)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


@cache
def empty_image(layout: Layout = Layout.PLAIN) -> bytes:
    """A catalog without a row, all counters zero."""
    columns = ", ".join(f"{name} {_TYPES.get(name, 'INTEGER')}" for name in layout.columns)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript("BEGIN;" + _TABLES.format(columns=columns, revision=layout.revision) + "COMMIT;")
    connection.executemany(
        "INSERT INTO statistics VALUES (?,0)", [(f"{half}_{n}",) for half in ("self", "subtree") for n in NAMES]
    )
    image = connection.serialize()
    connection.close()
    return image


def row_fault(connection: sqlite3.Connection) -> str | None:
    """Return why rows of a catalog can be in no revision; None if they can. Raises sqlite3.Error."""
    for what, rows in _ROW_FAULTS.items():
        (number,) = connection.execute(f"SELECT count(*) FROM {rows}").fetchone()  # noqa: S608 - statements of ours
        if number:
            return f"has {what}: {number}"
    return None


def schema_fault(properties: Mapping[str, object]) -> str | None:
    """Return why a catalog with these properties cannot be read; None if it can. Raises ValueError, TypeError."""
    schema = float(str(properties.get("schema") or 1.0))
    if abs(schema - SCHEMA) <= _EPSILON:
        return None
    if schema > SCHEMA:
        return f"has the newer schema {schema:g}, this program reads {SCHEMA}; use a newer version of it"
    return f"has schema {schema:g}, this program reads {SCHEMA}; migrate the repository with the stock tools first"


def revision_fault(properties: Mapping[str, object]) -> str | None:
    """Return why a catalog that can be read cannot be written. Raises ValueError, OverflowError."""
    revision = int(float(str(properties.get("schema_revision") or 0)))
    if revision <= SCHEMA_REVISION:
        return None
    what = f"is of revision {revision} of its schema and can be read, but this program writes {SCHEMA_REVISION}"
    return f"{what}, which would lose what is new in it; use a newer version of this program"


def is_upgraded(properties: Mapping[str, object]) -> bool:
    """Tell whether a catalog states the revision that :func:`upgrade` gives it, or a newer one. Raises ValueError."""
    return int(float(str(properties.get("schema_revision") or 0))) >= _UPGRADED_TO


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a catalog of a revision before 6 up to that one, but for its counters (:func:`count`).

    As the stock tools do, and no further: of later revisions the layout stays as it is.
    """
    if XATTR not in columns_of(connection, "catalog"):
        connection.execute(f"ALTER TABLE catalog ADD COLUMN {XATTR} BLOB")
    if "size" not in columns_of(connection, "nested_catalogs"):
        connection.execute("ALTER TABLE nested_catalogs ADD COLUMN size INTEGER DEFAULT 0")
    connection.execute(_BIND_TABLE)
    connection.execute(_STATISTICS_TABLE)
    if not is_upgraded(read_properties(connection)):
        connection.execute("INSERT OR REPLACE INTO properties VALUES ('schema_revision', ?)", (str(_UPGRADED_TO),))


def relaid(connection: sqlite3.Connection, layout: Layout) -> sqlite3.Connection:
    """A copy of a catalog of revision 6 or 7 in another layout, column by column; rows keep their numbers."""
    copy = open_image(empty_image(layout))
    copy.execute("ATTACH ':memory:' AS old")
    copy.deserialize(connection.serialize(), name="old")
    copy.execute("BEGIN")
    copy.execute("DELETE FROM statistics")
    for table in ("catalog", "chunks", "nested_catalogs", "bind_mountpoints", "statistics"):
        columns = columns_of(connection, table)
        names = ", ".join(("rowid", *(name for name in columns_of(copy, table) if name in columns)))
        copy.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM old.{table} ORDER BY rowid")  # noqa: S608
    copy.execute(
        "INSERT OR REPLACE INTO properties SELECT key, value FROM old.properties"
        " WHERE key NOT IN ('schema', 'schema_revision') ORDER BY key"
    )
    copy.execute("COMMIT")
    copy.execute("DETACH old")
    return copy


def count(connection: sqlite3.Connection, names: list[str]) -> dict[str, int]:
    """Count these of a catalog's own counters from its rows."""
    present = columns_of(connection, "catalog")
    counts = dict.fromkeys(names, 0)
    for name in names:
        if name in _ROWS:
            sql = f"SELECT count(*) FROM {_ROWS[name]}"  # noqa: S608 - names of ours
        elif name == "xattr" and XATTR not in present:
            continue
        else:
            sql = f"SELECT {_COUNTED[name]} FROM catalog"  # noqa: S608
        counts[name] = int(connection.execute(sql).fetchone()[0] or 0)
    return counts


_T = TypeVar("_T")


def read_schema(connection: sqlite3.Connection) -> Tables:
    """The tables of a catalog that have more than one form. Raises sqlite3.Error, also for a file with programs."""
    tables = []
    for name, kind, page, sql in connection.execute("SELECT name, type, rootpage, sql FROM sqlite_schema"):
        # Views, triggers and virtual tables are programs, which may have no end; no stock tool writes any.
        if kind not in ("table", "index") or not page:
            raise sqlite3.DatabaseError(f"it holds {str(name)[:40]!r}, which is neither table nor index")
        if name in OF_SEVERAL_FORMS:
            tables.append((name, sql))
    return tuple(tables)


def read_properties(connection: sqlite3.Connection) -> dict[str, object]:
    """The properties of a catalog. Raises sqlite3.Error."""
    return dict(connection.execute("SELECT key, value FROM properties"))


class CatalogFile:
    """The open file. ``path``: the catalog's mount path (``""`` for the root catalog); ``name``: of its object.

    ``size``: bytes of the file that it was loaded from, 0 for a new one.
    """

    size = 0

    def __init__(self, connection: sqlite3.Connection, path: str, name: ObjectHash | None = None) -> None:
        self._db = connection
        self.path = path
        self.name = name

    def close(self) -> None:
        self._db.close()

    def get_property(self, key: str) -> str | None:
        row = self._one("SELECT value FROM properties WHERE key = ?", key)
        return None if row is None or row[0] is None else str(row[0])

    def set_property(self, key: str, value: object) -> None:
        self._run("INSERT OR REPLACE INTO properties VALUES (?, CAST(? AS TEXT))", key, str(value))

    def _number(self, key: str, default: int = 0) -> int:
        text = self.get_property(key)
        try:
            return default if text is None else int(text)
        except ValueError:
            raise CatalogError(self.path, f"property {key} is {text!r}, not a number") from None

    def damaged(self, path: str, fault: object) -> CatalogError:
        """The error for what was found wrong at ``path``; it names this catalog."""
        what = "a value is NULL or of the wrong type" if isinstance(fault, TypeError) else fault
        named = "" if self.name is None else f" {self.name}"
        return CatalogError(path, f"damaged catalog{named}: {what}")

    def row_fault(self) -> str | None:
        """Return why rows of it can be in no revision. Raises CatalogError."""
        return self._guarded(lambda: row_fault(self._db))

    def symlinks(self) -> dict[str, str]:
        """The target of each symbolic link in it, by the link's path. Raises CatalogError."""
        links = dict[str, str]()
        directories: dict[tuple[int, ...], str] = {path_hash(self.path): self.path}
        for *parent, name, target in self._all(
            "SELECT parent_1, parent_2, name, symlink FROM catalog WHERE flags & ? ORDER BY name", Flag.SYMLINK.value
        ):
            if not isinstance(name, str) or not isinstance(target, str):
                raise self.damaged(self.path, TypeError())
            links[f"{self._path_of(parent, directories)}/{name}"] = target
        return links

    def _path_of(self, key: Sequence[int], paths: dict[tuple[int, ...], str]) -> str:
        """The path of the directory whose row has this path hash; `known`: of other directories, to be added to."""
        names: list[tuple[tuple[int, ...], str]] = []
        here = tuple(key)
        sql = "SELECT parent_1, parent_2, name FROM catalog WHERE md5path_1=? AND md5path_2=?"
        while here not in paths:
            row = self._one(sql, *here)
            if row is None or not isinstance(row[2], str) or any(here == passed for passed, _ in names):
                raise self.damaged(self.path, "an entry is in no directory")
            names.append((here, row[2]))
            here = row[:2]
        path = paths[here]
        for step, name in reversed(names):
            path = paths[step] = f"{path}/{name}"
        return path

    # -- statements

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._guarded(lambda: self._executed(sql, values).fetchall())

    def _one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._guarded(lambda: self._executed(sql, values).fetchone())
        return row

    def _run(self, sql: str, *values: object) -> int:
        return self._guarded(lambda: self._executed(sql, values).rowcount)

    def _many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Return one statement for many rows; how many rows of the file it changed."""
        return self._guarded(lambda: self._executed_many(sql, list(rows)))

    def _executed(self, sql: str, values: Sequence[object]) -> sqlite3.Cursor:
        # Judged before, not by the error: of a file that another thread reads too, sqlite3 may raise that one's.
        for value in values:
            if isinstance(value, str) and not value.isascii():
                return self._db.execute(sql, _bound(values))
        return self._db.execute(sql, values)

    def _executed_many(self, sql: str, rows: list[tuple[Any, ...]]) -> int:
        if not rows:
            return 0
        self._db.execute("SAVEPOINT many")
        try:
            changed = self._db.executemany(sql, rows).rowcount
        except UnicodeEncodeError:
            self._db.execute("ROLLBACK TO many")  # the rows before the one with such a name
            changed = self._db.executemany(sql, map(_bound, rows)).rowcount
        self._db.execute("RELEASE many")
        return changed

    def _guarded(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except sqlite3.IntegrityError as fault:
            raise CatalogError(self.path, f"two entries at one path ({fault})") from fault
        except (sqlite3.Error, SystemError, OverflowError, ValueError, TypeError, IndexError) as fault:
            # SystemError: what went wrong was forgotten, since another thread read the same file in the meantime.
            raise self.damaged(self.path, fault) from fault


def _bound(values: Sequence[object]) -> list[object]:
    """Values for a statement that takes names as ``CAST(? AS TEXT)``: those that are not UTF-8 as their bytes."""
    return [bytes_of_name(value) if isinstance(value, str) and _is_escaped(value) else value for value in values]


def _is_escaped(text: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in text)
