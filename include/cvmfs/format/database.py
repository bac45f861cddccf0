"""SQLite files in memory, and the reflog as one of them (docs/formats.md, databases and reflog)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self, TypeVar

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, SHA1, Algorithm, ObjectHash, hash_bytes

_MAGIC = b"SQLite format 3\0"
_JOURNAL_VERSIONS = slice(18, 20)
_ROLLBACK_JOURNAL = b"\x01\x01"
_EPSILON = 0.0005
_T = TypeVar("_T")


class Database:
    """An SQLite file of one schema. What is wrong with its bytes comes out as FormatError, never as sqlite3.Error.

    The same operations on the same bytes give the same bytes. Usable from one thread at a time.
    """

    WHAT = "database"
    SCHEMA = 1.0
    TABLES: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - each subject states its own

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    def _create(cls, script: str) -> Self:
        database = cls(_connect())
        database._guarded(lambda: database._connection.executescript(f"BEGIN;{script};COMMIT;"))
        return database

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Open the bytes of such a file. Raises FormatError."""
        if not data.startswith(_MAGIC):
            raise FormatError(cls.WHAT, "not an SQLite file")
        if data[_JOURNAL_VERSIONS] != _ROLLBACK_JOURNAL:
            raise FormatError(cls.WHAT, "an SQLite file that needs a write-ahead log; readers cannot open it")
        connection = _connect()
        database = cls(connection)
        try:
            database._guarded(lambda: connection.deserialize(data))
            database._check_tables()
        except BaseException:
            connection.close()
            raise
        return database

    def to_bytes(self) -> bytes:
        """The whole SQLite file, as it is stored before any compression."""
        return self._guarded(self._connection.serialize)

    def close(self) -> None:
        self._connection.close()

    def get_property(self, key: str) -> str | None:
        rows = self._all("SELECT value FROM properties WHERE key = ?", key)
        return None if not rows or rows[0][0] is None else str(rows[0][0])

    def set_property(self, key: str, value: str) -> None:
        self._run("INSERT OR REPLACE INTO properties VALUES (?, ?)", key, value)

    def _check_tables(self) -> None:
        # Views, triggers and virtual tables are programs; no stock tool writes any.
        strange = self._all("SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR rootpage = 0")
        if strange:
            raise FormatError(self.WHAT, f"holds {str(strange[0][0])[:40]!r}, which is neither table nor index")
        for table, columns in {"properties": ("key", "value"), **self.TABLES}.items():
            present = {str(row[1]) for row in self._all(f"PRAGMA table_info({table})")}
            if missing := [column for column in columns if column not in present]:
                raise FormatError(self.WHAT, f"table {table} lacks {', '.join(missing)}")
        text = self.get_property("schema") or "1.0"
        try:
            readable = abs(float(text) - self.SCHEMA) < _EPSILON
        except ValueError:
            readable = False
        if not readable:
            raise FormatError(self.WHAT, f"schema {text[:20]!r}, this program reads {self.SCHEMA}")

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._guarded(lambda: self._connection.execute(sql, values).fetchall())

    def _run(self, sql: str, *values: object) -> int:
        return self._guarded(lambda: self._connection.execute(sql, values).rowcount)

    def _run_all(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run a statement for many rows, all or none."""
        with self._transaction():
            self._guarded(lambda: self._connection.executemany(sql, rows))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, also when the reason to stop is not the database's."""
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def _guarded(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as fault:
            raise FormatError(self.WHAT, f"damaged: {fault}") from fault


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    # Hostile files: their schema may call nothing, and their cells are checked when read.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


KEY = ".cvmfsreflog"
_INSERT = "INSERT OR REPLACE INTO refs VALUES (?, ?, ?)"
_TABLES = """
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER, CONSTRAINT pk_refs PRIMARY KEY (hash));
INSERT INTO properties VALUES ('schema', '1.0'), ('schema_revision', '0');
"""


class RefType(Enum):
    """Kind of a reference; the value is that of the column ``type``."""

    CATALOG = 0
    CERTIFICATE = 1
    HISTORY = 2
    META = 3

    @property
    def suffix(self) -> str:
        return {0: CATALOG, 1: CERTIFICATE, 2: HISTORY, 3: META}[self.value]


@dataclass(frozen=True, slots=True)
class Ref:
    """A row; ``timestamp`` (Unix seconds) is when it was last published."""

    hash: ObjectHash
    type: RefType
    timestamp: int

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Ref:
        text, number, timestamp = row
        try:
            kind = RefType(number)
            parsed = ObjectHash.parse(str(text), suffix=kind.suffix)
        except ValueError:
            raise FormatError("reflog", f"row {str(text)[:60]!r} has the unknown type {number!r}") from None
        if str(parsed) != text or not isinstance(timestamp, int):
            raise FormatError("reflog", f"row {str(text)[:60]!r} is not a hash without suffix and a time")
        return cls(parsed, kind, timestamp)

    def to_row(self) -> tuple[str, int, int]:
        return str(self.hash), self.type.value, self.timestamp


class Reflog(Database):
    """A reflog, schema 1.0 revision 0. Stored as it is, and named by hash in the manifest."""

    WHAT = "reflog"
    TABLES = {"refs": ("hash", "type", "timestamp")}  # noqa: RUF012

    @classmethod
    def create(cls, fqrn: str) -> Self:
        reflog = cls._create(_TABLES)
        reflog.set_property("fqrn", fqrn)
        return reflog

    @property
    def fqrn(self) -> str:
        return self.get_property("fqrn") or ""

    def add(self, hash: ObjectHash, type: RefType, timestamp: int) -> None:  # noqa: A002 - the columns' names
        """Note that an object is referred to at ``timestamp``; one that is noted already gets the new time."""
        self._run(_INSERT, *Ref(hash, type, timestamp).to_row())

    def add_all(self, refs: Iterable[Ref]) -> None:
        self._run_all(_INSERT, [ref.to_row() for ref in refs])

    def contains(self, hash: ObjectHash) -> bool:  # noqa: A002
        return bool(self._all("SELECT 1 FROM refs WHERE hash = ?", str(hash)))

    def remove(self, hash: ObjectHash) -> bool:  # noqa: A002
        """Forget an object; False if it was not noted."""
        return self._run("DELETE FROM refs WHERE hash = ?", str(hash)) > 0

    def remove_all(self, hashes: Iterable[ObjectHash]) -> int:
        """Forget objects and drop the room that they took; how many were noted."""
        before = len(self)
        self._run_all("DELETE FROM refs WHERE hash = ?", [(str(hash_),) for hash_ in hashes])
        if removed := before - len(self):
            self._run("VACUUM")
        return removed

    def refs(self, type: RefType | None = None, *, before: int | None = None) -> list[Ref]:  # noqa: A002
        """The rows, newest first, of one type or all, and older than ``before`` (Unix seconds) if given."""
        sql = (
            "SELECT hash, type, timestamp FROM refs WHERE (?1 IS NULL OR type = ?1) AND (?2 IS NULL OR timestamp < ?2)"
        )
        rows = self._all(f"{sql} ORDER BY timestamp DESC, hash", type.value if type else None, before)
        return [Ref.from_row(row) for row in rows]

    def __len__(self) -> int:
        return int(self._all("SELECT count(*) FROM refs")[0][0])

    def hash(self, algorithm: Algorithm = SHA1) -> ObjectHash:
        """The manifest's field Y for this reflog: the hash of the raw file."""
        return hash_bytes(self.to_bytes(), algorithm)
