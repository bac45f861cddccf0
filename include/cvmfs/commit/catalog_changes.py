"""What differs between two versions of one catalog, found inside SQLite: the cost in Python follows the change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from include.cvmfs.errors import CatalogError, MergeError
from include.cvmfs.format.dirent import COLUMNS
from include.cvmfs.format.hashes import path_hash
from include.cvmfs.format.layout import KEY, MTIME_NS, columns_of
from include.cvmfs.format.paths import ancestors, is_below, name_fault
from include.cvmfs.format.schema import open_image

Names = Mapping[str, frozenset[str]]
"""By directory, the names in it that differ or lead to something that does."""

_FEW = 256
_SHAPES = 64
_USABLE: dict[tuple[tuple[str, str], ...], tuple[str, ...] | None] = {}  # by the schema's text
_BEFORE, _AFTER = "main", "after"


class CatalogComparison:
    """The SQLite file of a catalog mounted at ``mount``, opened to be compared with others that came after it."""

    def __init__(self, before: bytes, mount: str) -> None:
        self._both = open_image(before)
        self._mount = mount
        self._tables: list[tuple[str, str]] | None = None

    def close(self) -> None:
        self._both.close()

    def names(self, after: bytes) -> Names | None:
        """Return which names differ, the catalog's own root entry apart.

        None where the files have different columns, and must be listed to be compared. Raises CatalogError for a row
        that is not where its parent and name put it, MergeError for one with a slash in its name.
        """
        try:
            self._both.execute(f"ATTACH ':memory:' AS {_AFTER}")
            try:
                self._both.deserialize(after, name=_AFTER)
                columns = self._columns()
                return None if columns is None else _Changes(self._both, self._mount, columns).names()
            finally:
                self._both.execute(f"DETACH {_AFTER}")
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as fault:
            raise CatalogError(self._mount, f"damaged catalog: {fault}") from fault

    def _columns(self) -> tuple[str, ...] | None:
        if self._tables is None:
            self._tables = self._tables_of(_BEFORE)
        if self._tables != self._tables_of(_AFTER):
            return None
        shape = tuple(self._tables)
        if shape not in _USABLE:
            present = columns_of(self._both, "catalog")
            wanted = tuple(name for name in (*KEY, *COLUMNS) if name in present or name != MTIME_NS)
            needed = (("catalog", wanted), ("nested_catalogs", ("path", "sha1", "size")))
            usable = all(set(names) <= set(columns_of(self._both, table)) for table, names in needed)
            if len(_USABLE) > _SHAPES:
                _USABLE.clear()
            _USABLE[shape] = wanted if usable else None
        return _USABLE[shape]

    def _tables_of(self, side: str) -> list[tuple[str, str]]:
        sql = f"SELECT name, sql FROM {side}.sqlite_schema WHERE type = 'table' ORDER BY name"  # noqa: S608
        return self._both.execute(sql).fetchall()


def _top(letter: str, other: str) -> str:
    """SQL: the row's directory exists on the other side too, so no row above it covers it."""
    where = f"p.md5path_1 = {letter}.parent_1 AND p.md5path_2 = {letter}.parent_2"
    return f"EXISTS (SELECT 1 FROM {other}.catalog p WHERE {where})"  # noqa: S608


class _Changes:
    def __init__(self, both: sqlite3.Connection, mount: str, columns: tuple[str, ...]) -> None:
        self._both = both
        self._mount = mount
        self._columns = columns
        self._paths: dict[tuple[str, int, int], str | None] = {
            (side, *path_hash(mount)): mount for side in (_BEFORE, _AFTER)
        }
        self._names: dict[str, set[str]] = {}

    def names(self) -> Names:
        for side, row in self._rows():
            self._note(self._path(side, *row))
        tables = ["nested_catalogs"]
        if columns_of(self._both, "bind_mountpoints") and self._any("bind_mountpoints"):
            tables.append("bind_mountpoints")
        for table in tables:
            for path in self._references(table):
                if is_below(path, self._mount):
                    self._note(path)
        if self._any("chunks"):
            for side, key in self._chunked():
                self._note(self._path_of_key(side, *key))
        return {path: frozenset(names) for path, names in self._names.items()}

    def _note(self, path: str | None) -> None:
        if path is None or path == self._mount:
            return
        directory, _, last = path.rpartition("/")
        if (noted := self._names.get(directory)) is not None:  # and so is the way to it
            noted.add(last)
            return
        for step in ancestors(path):
            if len(step) > len(self._mount):
                above, _, name = step.rpartition("/")
                self._names.setdefault(above, set()).add(name)

    def _any(self, table: str) -> bool:
        """Tell whether either side has a row in a table; most catalogs have none in the rarer ones."""
        there = (f"EXISTS (SELECT 1 FROM {side}.{table})" for side in (_BEFORE, _AFTER))  # noqa: S608
        return bool(self._both.execute(f"SELECT {' OR '.join(there)}").fetchone()[0])

    def _rows(self) -> Iterator[tuple[str, tuple[int, int, int, int, str]]]:
        """Key, parent's key and name of differing rows of either side; of what only one has, the top."""
        found = self._by_rowid()
        yield from self._by_key() if found is None else found

    def _by_rowid(self) -> list[tuple[str, tuple[int, int, int, int, str]]] | None:
        """Rows keep their numbers while a catalog is edited, and comparing by number is fast; None if they moved."""
        differs = " OR ".join(f"n.{name} IS NOT o.{name}" for name in self._columns)
        columns = ", ".join(f"{{0}}.{name}" for name in self._columns)
        joined = f"FROM {_AFTER}.catalog n LEFT JOIN {_BEFORE}.catalog o ON o.rowid = n.rowid"
        after = self._both.execute(
            f"SELECT {columns.format('n')}, o.rowid {joined} WHERE o.rowid IS NULL OR {differs} LIMIT {_FEW + 1}"
        ).fetchall()
        before = self._both.execute(
            f"SELECT {columns.format('o')} FROM {_BEFORE}.catalog o LEFT JOIN {_AFTER}.catalog n ON o.rowid = n.rowid"  # noqa: S608
            f" WHERE n.rowid IS NULL LIMIT {_FEW + 1}"
        ).fetchall()
        if len(after) > _FEW or len(before) > _FEW:
            return None
        for row in after:
            if row[-1] is not None:
                before += self._both.execute(
                    f"SELECT {columns.format('o')} FROM {_BEFORE}.catalog o WHERE rowid = ?",  # noqa: S608
                    (row[-1],),
                ).fetchall()
        new = {row[:2]: row[:-1] for row in after}
        old = {row[:2]: row for row in before}
        name = self._columns.index("name")
        return [
            (side, (*row[:4], row[name]))
            for side, rows, others in ((_AFTER, new, old), (_BEFORE, old, new))
            for key, row in rows.items()
            if others.get(key) != row
        ]

    def _by_key(self) -> Iterator[tuple[str, tuple[int, int, int, int, str]]]:
        differs = " OR ".join(f"n.{name} IS NOT o.{name}" for name in self._columns[2:])
        on = "ON o.md5path_1 = n.md5path_1 AND o.md5path_2 = n.md5path_2"
        new, old = f"{_AFTER}.catalog n", f"{_BEFORE}.catalog o"
        added = f"o.md5path_1 IS NULL AND {_top('n', _BEFORE)}"
        changed = f"o.md5path_1 IS NOT NULL AND ({differs})"
        for side, letter, tables, where in (
            (_AFTER, "n", f"{new} LEFT JOIN {old}", f"({added}) OR ({changed})"),
            (_BEFORE, "o", f"{old} LEFT JOIN {new}", f"n.md5path_1 IS NULL AND {_top('o', _AFTER)}"),
        ):
            columns = ", ".join(f"{letter}.{name}" for name in (*KEY, "name"))
            for row in self._both.execute(f"SELECT {columns} FROM {tables} {on} WHERE {where}"):  # noqa: S608
                yield side, row

    def _references(self, table: str) -> Iterator[str]:
        columns = "path, sha1, size"
        for side, other in ((_BEFORE, _AFTER), (_AFTER, _BEFORE)):
            sql = f"SELECT {columns} FROM {side}.{table} EXCEPT SELECT {columns} FROM {other}.{table}"  # noqa: S608
            for row in self._both.execute(sql):
                yield str(row[0])

    def _chunked(self) -> Iterator[tuple[str, tuple[int, int]]]:
        columns = "md5path_1, md5path_2, offset, size, hash"
        for side, other in ((_BEFORE, _AFTER), (_AFTER, _BEFORE)):
            differing = f"SELECT {columns} FROM {side}.chunks EXCEPT SELECT {columns} FROM {other}.chunks"  # noqa: S608
            of_both = f"JOIN {other}.catalog USING (md5path_1, md5path_2)"  # the others' rows differ already
            for row in self._both.execute(f"SELECT DISTINCT md5path_1, md5path_2 FROM ({differing}) {of_both}"):  # noqa: S608
                yield side, row

    def _path_of_key(self, side: str, first: int, second: int) -> str | None:
        found = self._both.execute(
            f"SELECT parent_1, parent_2, name FROM {side}.catalog WHERE md5path_1 = ? AND md5path_2 = ?",  # noqa: S608
            (first, second),
        ).fetchone()
        return None if found is None else self._path(side, first, second, *found)

    def _path(self, side: str, first: int, second: int, *parent_and_name: int | str | None) -> str | None:
        """The path of a row, from its name and the rows above it; None for one that no way leads to."""
        way: list[tuple[tuple[str, int, int], str]] = []
        key = (side, first, second)
        above_1, above_2, name = parent_and_name
        while key not in self._paths:
            self._paths[key] = None  # a circle ends here
            way.append((key, str(name)))
            key = (side, int(above_1 or 0), int(above_2 or 0))
            if key in self._paths:
                break
            row = self._both.execute(
                f"SELECT parent_1, parent_2, name FROM {side}.catalog WHERE md5path_1 = ? AND md5path_2 = ?",  # noqa: S608
                key[1:],
            ).fetchone()
            if row is None:
                break
            above_1, above_2, name = row
        path = self._paths.get(key)
        for key, name in reversed(way):
            if path is None:
                break
            path = f"{path}/{name}"
            if "/" in name:  # it would be read as a deeper path
                raise MergeError(path, str(name_fault(name)))
            if path_hash(path) != key[1:]:
                raise CatalogError(path, "its row does not match its parent and name")
            self._paths[key] = path
        return path
