"""A catalog's SQLite file in memory: statements whose faults come out as CatalogError, and the table of properties."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.dirent import Flag
from include.cvmfs.format.hashes import ObjectHash, path_hash
from include.cvmfs.format.layout import OF_SEVERAL_FORMS, Tables
from include.cvmfs.format.paths import bytes_of_name
from include.cvmfs.format.schema import row_fault

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
        if not all(value.isascii() for value in values if isinstance(value, str)):
            values = _bound(values)
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
