"""SQLite files in memory: the reflog, and the history, which has the named revisions.

Formats: docs/formats.md, databases and reflog; history.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self, TypeVar

from include.cvmfs.errors import FormatError, RepositoryError, TagError
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, SHA1, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress_database

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
_INSERT_REF = "INSERT OR REPLACE INTO refs VALUES (?, ?, ?)"
_REFLOG_TABLES = """
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
        reflog = cls._create(_REFLOG_TABLES)
        reflog.set_property("fqrn", fqrn)
        return reflog

    @property
    def fqrn(self) -> str:
        return self.get_property("fqrn") or ""

    def add(self, hash: ObjectHash, type: RefType, timestamp: int) -> None:  # noqa: A002 - the columns' names
        """Note that an object is referred to at ``timestamp``; one that is noted already gets the new time."""
        self._run(_INSERT_REF, *Ref(hash, type, timestamp).to_row())

    def add_all(self, refs: Iterable[Ref]) -> None:
        self._run_all(_INSERT_REF, [ref.to_row() for ref in refs])

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


TRUNK, TRUNK_PREVIOUS = "trunk", "trunk-previous"
_UNDO_TAGS = {TRUNK: "current HEAD", TRUNK_PREVIOUS: "default undo target"}
_LONGEST_NAME = 255
NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line breaks and lone surrogates: neither the name nor the description of a tag has any."""

_COLUMNS = "name, hash, revision, timestamp, size, description, branch"
_INSERT_TAG = f"INSERT INTO tags ({_COLUMNS}, channel) VALUES (?, ?, ?, ?, ?, ?, ?, 0)"  # noqa: S608
_REVISION = 3
_BRANCHES = """
CREATE TABLE IF NOT EXISTS branches
  (branch TEXT, parent TEXT, initial_revision INTEGER, CONSTRAINT pk_branch PRIMARY KEY (branch),
  FOREIGN KEY (parent) REFERENCES branches (branch),
  CHECK ((branch <> '') OR (parent IS NULL)), CHECK ((branch = '') OR (parent IS NOT NULL)))"""
_RECYCLE_BIN = (
    "CREATE TABLE IF NOT EXISTS recycle_bin (hash TEXT, flags INTEGER, CONSTRAINT pk_hash PRIMARY KEY (hash))"
)
_HISTORY_TABLES = f"""
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
{_BRANCHES};
CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER, description TEXT,
  size INTEGER, branch TEXT, CONSTRAINT pk_tags PRIMARY KEY (name),
  FOREIGN KEY (branch) REFERENCES branches (branch));
{_RECYCLE_BIN};
INSERT INTO properties VALUES ('schema', '1.0'), ('schema_revision', '{_REVISION}');
INSERT INTO branches VALUES ('', NULL, 0);
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Tag:
    """A named revision. Hash, revision, timestamp (Unix seconds) and size (bytes of the SQLite file) are those of the
    root catalog that it names."""

    name: str
    hash: ObjectHash
    revision: int
    timestamp: int
    size: int
    description: str = ""
    branch: str = ""

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Tag:
        name, text, revision, timestamp, size, description, branch = row
        root = ObjectHash.parse(str(text), suffix=CATALOG)
        numbers = (revision, timestamp, 0 if size is None else size)
        if not isinstance(name, str) or str(root) != text or not all(isinstance(number, int) for number in numbers):
            raise FormatError("history", f"the row of tag {str(name)[:60]!r} is no name, hash and numbers")
        return cls(name, root, *numbers, str(description or ""), str(branch or ""))  # type: ignore[arg-type]

    def to_row(self) -> tuple[str, str, int, int, int, str, str]:
        text = str(self.hash)
        return self.name, text, self.revision, self.timestamp, self.size, self.description, self.branch


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of revisions; the default one has the empty name and no parent."""

    name: str
    parent: str | None
    initial_revision: int

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Branch:
        name, parent, revision = row
        if not isinstance(name, str) or not isinstance(parent, str | None) or not isinstance(revision, int):
            raise FormatError("history", f"the row of branch {str(name)[:60]!r} is no name, parent and number")
        return cls(name, parent, revision)


def check_tag_name(name: str) -> str:
    """The name, if users may give it to a tag. Raises TagError."""
    if name in _UNDO_TAGS:
        raise TagError(name, "is kept by every commit and not made or removed by hand; choose another name")
    if not name or not name.isprintable() or " " in name or len(name.encode()) > _LONGEST_NAME:
        raise TagError(name, f"a name is 1 to {_LONGEST_NAME} bytes of printable text without blanks; choose another")
    return name


def check_tag_description(name: str, description: str) -> str:
    """The description, if the tag ``name`` may have it: listings have one tag a line. Raises TagError."""
    if NOT_IN_A_LINE.search(description):
        raise TagError(name, "its description has a line break or another control character; write it in one line")
    return description


class History(Database):
    """A history database, schema 1.0 revision 3; one of an older revision is brought up to it when it is opened.

    It is published only with at least one tag in it (:meth:`pack`).
    """

    WHAT = "history"
    TABLES = {  # noqa: RUF012
        "tags": ("name", "hash", "revision", "timestamp", "channel", "description", "size", "branch"),
        "branches": ("branch", "parent", "initial_revision"),
    }

    @classmethod
    def create(cls, fqrn: str) -> Self:
        history = cls._create(_HISTORY_TABLES)
        history.set_property("fqrn", fqrn)
        return history

    def _check_tables(self) -> None:
        if self._revision() < _REVISION:
            self._upgrade()
        super()._check_tables()

    def _revision(self) -> int:
        text = self.get_property("schema_revision") or "0"
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            raise FormatError(self.WHAT, f"its schema has the revision {text[:20]!r}, which is no number") from None

    def _upgrade(self) -> None:
        """Add what came with later revisions: sizes, the table that is kept empty, branches."""
        present = {str(row[1]) for row in self._all("PRAGMA table_info(tags)")}
        for column in ("size INTEGER DEFAULT 0", "branch TEXT DEFAULT ''"):
            if present and column.partition(" ")[0] not in present:
                self._run(f"ALTER TABLE tags ADD COLUMN {column}")
        self._run(_RECYCLE_BIN)
        self._run(_BRANCHES)
        self._run("INSERT OR IGNORE INTO branches VALUES ('', NULL, 0)")
        self.set_property("schema_revision", str(_REVISION))

    def _require_writable(self) -> None:
        if (revision := self._revision()) > _REVISION:
            what = f"is of revision {revision} of its schema, this program writes {_REVISION}"
            raise FormatError(self.WHAT, f"{what}; use a newer version of this program")

    @property
    def fqrn(self) -> str:
        return self.get_property("fqrn") or ""

    @property
    def previous_revision(self) -> ObjectHash | None:
        """The history database before this one."""
        text = self.get_property("previous_revision")
        previous = ObjectHash.parse(text, suffix=HISTORY) if text else None
        return None if previous is None or previous.is_null else previous

    def set_previous(self, previous: ObjectHash) -> None:
        self.set_property("previous_revision", str(previous))

    def tags(self) -> list[Tag]:
        """All tags, latest revision first."""
        rows = self._all(f"SELECT {_COLUMNS} FROM tags ORDER BY revision DESC, timestamp DESC, name")  # noqa: S608
        return [Tag.from_row(row) for row in rows]

    def tag(self, name: str) -> Tag | None:
        rows = self._all(f"SELECT {_COLUMNS} FROM tags WHERE name = ?", name)  # noqa: S608
        return Tag.from_row(rows[0]) if rows else None

    def __len__(self) -> int:
        """Return how many tags there are."""
        return int(self._all("SELECT count(*) FROM tags")[0][0])

    def branches(self) -> list[Branch]:
        rows = self._all("SELECT branch, parent, initial_revision FROM branches ORDER BY branch")
        return [Branch.from_row(row) for row in rows]

    def add(self, tag: Tag) -> None:
        """Add a tag. Raises TagError if its name is reserved, badly formed or taken, or its branch unknown."""
        check_tag_name(tag.name)
        if self.tag(tag.name):
            raise TagError(tag.name, "exists already; remove or move it, or choose another name")
        self._insert(tag)

    def move(self, tag: Tag) -> Tag | None:
        """Move an existing name to another revision and return its former tag; add a new name and return None."""
        check_tag_name(tag.name)
        before = self.tag(tag.name)
        with self._transaction():
            self._delete(tag.name)
            self._insert(tag)
        return before

    def remove(self, *names: str) -> int:
        """Remove tags, and branches left without one; give how many tags there were. Raises TagError if reserved."""
        removed = 0
        for name in names:
            check_tag_name(name)
            removed += self._delete(name)
        if removed:
            self._prune_branches()
            self._run("VACUUM")
        return removed

    def rotate_trunk(self, head: Tag, previous: ObjectHash | None = None, *, rollback: bool = False) -> None:
        """Move ``trunk`` to ``head``, and ``trunk-previous`` to where it was (dropped by a rollback).

        Name and description of ``head`` do not matter. ``previous``: hash of the history that this one follows.
        """
        with self._transaction():
            before = self.tag(TRUNK)
            self._delete(TRUNK_PREVIOUS)
            self._delete(TRUNK)
            if before and not rollback:
                self._insert(replace(before, name=TRUNK_PREVIOUS, description=_UNDO_TAGS[TRUNK_PREVIOUS]))
            self._insert(replace(head, name=TRUNK, description=_UNDO_TAGS[TRUNK]))
            if previous is not None:
                self.set_previous(previous)

    def problems(self) -> list[str]:
        """Return what the stock check would complain about; empty when nothing."""
        branches = {branch.name: branch for branch in self.branches()}
        tags = self.tags()
        problems = [] if tags else ["holds no tag"]
        for tag in tags:
            branch = branches.get(tag.branch)
            if branch is None:
                problems.append(f"tag {tag.name} is on branch {tag.branch!r}, which does not exist")
            elif tag.revision < branch.initial_revision:
                problems.append(f"tag {tag.name} is older than its branch {tag.branch!r}")
        unused = sorted(branches.keys() - {tag.branch for tag in tags})
        return problems + [f"branch {name!r} is not used by any tag" for name in unused]

    def pack(self, algorithm: Algorithm = SHA1) -> tuple[ObjectHash, bytes]:
        """The history as an object: its hash and stored bytes. Raises RepositoryError without a tag."""
        if not len(self):
            raise RepositoryError(self.fqrn, "a history without a tag is not published; add a tag or leave it out")
        data = compress_database(self.to_bytes())
        return hash_bytes(data, algorithm, HISTORY), data

    def _insert(self, tag: Tag) -> None:
        self._require_writable()
        if not self._all("SELECT 1 FROM branches WHERE branch = ?", tag.branch):
            raise TagError(tag.name, f"is to be on branch {tag.branch!r}, which does not exist; use an existing branch")
        self._run(_INSERT_TAG, *tag.to_row())

    def _delete(self, name: str) -> int:
        self._require_writable()
        return self._run("DELETE FROM tags WHERE name = ?", name)

    def _prune_branches(self) -> None:
        # The default branch stays: it is the ancestor of all others, and the next tag needs it.
        unused = (
            "branch NOT IN (SELECT branch FROM tags) AND branch NOT IN (SELECT parent FROM branches WHERE parent <> '')"
        )
        while self._run(f"DELETE FROM branches WHERE branch <> '' AND {unused}"):  # noqa: S608
            pass
