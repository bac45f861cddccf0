"""A catalog's SQLite file in memory: statements whose faults come out as CatalogError, and the table of properties."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from include.cvmfs.errors import CatalogError

_T = TypeVar("_T")


class CatalogFile:
    """The open file. ``path`` is the catalog's mount path (``""`` for the repository's root catalog)."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._db = connection
        self.path = path

    def close(self) -> None:
        self._db.close()

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

    # -- statements

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._guarded(lambda: self._db.execute(sql, values).fetchall())

    def _one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._guarded(lambda: self._db.execute(sql, values).fetchone())
        return row

    def _run(self, sql: str, *values: object) -> int:
        return self._guarded(lambda: self._db.execute(sql, values).rowcount)

    def _many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """One statement for many rows; how many rows of the file it changed."""
        return self._guarded(lambda: self._db.executemany(sql, rows).rowcount)

    def _guarded(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except sqlite3.IntegrityError as fault:
            raise CatalogError(self.path, f"two entries at one path ({fault})") from fault
        except (sqlite3.Error, SystemError, OverflowError, ValueError, TypeError, IndexError) as fault:
            # SystemError: what went wrong was forgotten, since another thread read the same file in the meantime.
            raise CatalogError(self.path, f"damaged catalog: {fault}") from fault
