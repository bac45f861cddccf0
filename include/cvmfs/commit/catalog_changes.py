"""Differences between two versions of a catalog, found inside SQLite, and new rows copied many at a time."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CatalogError, MergeError
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import COLUMNS, Dirent
from include.cvmfs.format.hashes import DIGEST_BYTES, path_hash
from include.cvmfs.format.layout import KEY, MTIME_NS, CatalogContents, columns_of
from include.cvmfs.format.paths import ancestors, is_below, name_fault, parent_of
from include.cvmfs.format.schema import LARGEST, Counts, open_image
from include.cvmfs.revision.revision import Revision

Names = Mapping[str, frozenset[str]]
"""By directory, the names in it that differ or lead to something that does."""

SMALL_BYTES = 128 << 10
"""A catalog of some hundred entries, and no more."""
_FEW = 256
_SHAPES = 64
_USABLE: dict[tuple[tuple[str, str], ...], tuple[str, ...] | None] = {}  # by the schema's text
_BEFORE, _AFTER = "main", "after"
_NAME = COLUMNS.index("name")


class CatalogComparison:
    """A catalog, opened to be compared with others that came after it.

    Small ones are read whole: for them the compilation of statements would cost more than their rows.
    """

    def __init__(self, catalogs: CatalogCache, before: Catalog) -> None:
        self._catalogs = catalogs
        self._before = before
        self._contents: CatalogContents | None = None
        self._both: sqlite3.Connection | None = None
        self._tables: list[tuple[str, str]] | None = None

    def close(self) -> None:
        if self._both is not None:
            self._both.close()

    def names(self, after: Catalog) -> Names | None:
        """Return which names differ, the catalog's own root entry apart.

        None where the files have different columns, and must be listed to be compared. Raises CatalogError for a row
        that is not where its parent and name put it, MergeError for one with a slash in its name.
        """
        mount = self._before.path
        try:
            if max(self._before.size, after.size) <= SMALL_BYTES:
                if self._contents is None:
                    self._contents = self._before.contents()
                contents = after.contents()
                return (
                    None if contents.shape != self._contents.shape else _Read(self._contents, contents, mount).names()
                )
            return self._attached(after)
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as fault:
            raise CatalogError(mount, f"damaged catalog: {fault}") from fault

    def _attached(self, after: Catalog) -> Names | None:
        assert self._before.name is not None  # noqa: S101 - asked for by the callers
        assert after.name is not None  # noqa: S101
        if self._both is None:
            self._both = open_image(self._catalogs.database(self._before.name))
        self._both.execute(f"ATTACH ':memory:' AS {_AFTER}")
        try:
            self._both.deserialize(self._catalogs.database(after.name), name=_AFTER)
            columns = self._columns(self._both)
            return None if columns is None else _Attached(self._both, self._before.path, columns).names()
        finally:
            self._both.execute(f"DETACH {_AFTER}")

    def _columns(self, both: sqlite3.Connection) -> tuple[str, ...] | None:
        if self._tables is None:
            self._tables = _tables_of(both, _BEFORE)
        if self._tables != _tables_of(both, _AFTER):
            return None
        shape = tuple(self._tables)
        if shape not in _USABLE:
            present = columns_of(both, "catalog")
            columns = tuple(name for name in (*KEY, *COLUMNS) if name in present or name != MTIME_NS)
            needed = (("catalog", columns), ("nested_catalogs", ("path", "sha1", "size")))
            usable = all(set(names) <= set(columns_of(both, table)) for table, names in needed)
            if len(_USABLE) > _SHAPES:
                _USABLE.clear()
            _USABLE[shape] = columns if usable else None
        return _USABLE[shape]


def _tables_of(both: sqlite3.Connection, side: str) -> list[tuple[str, str]]:
    sql = f"SELECT name, sql FROM {side}.sqlite_schema WHERE type = 'table' ORDER BY name"  # noqa: S608
    return both.execute(sql).fetchall()


def _top(letter: str, other: str) -> str:
    """SQL: the row's directory exists on the other side too, so no row above it covers it."""
    where = f"p.md5path_1 = {letter}.parent_1 AND p.md5path_2 = {letter}.parent_2"
    return f"EXISTS (SELECT 1 FROM {other}.catalog p WHERE {where})"  # noqa: S608


_Row = tuple[int, int, int, int, str]
"""Key, parent's key and name."""


class _Changes(ABC):
    """The names that differ between two versions of a catalog; how their rows are found is the subclass's."""

    def __init__(self, mount: str) -> None:
        self._mount = mount
        self._paths: dict[tuple[str, int, int], str | None] = {
            (side, *path_hash(mount)): mount for side in (_BEFORE, _AFTER)
        }
        self._names: dict[str, set[str]] = {}

    def names(self) -> Names:
        for side, row in self._rows():
            self._note(self._path(side, *row))
        for path in self._references():
            if is_below(path, self._mount):
                self._note(path)
        for side, key in self._chunked():
            above = self._row(side, *key)
            self._note(None if above is None else self._path(side, *key, *above))
        return {path: frozenset(names) for path, names in self._names.items()}

    @abstractmethod
    def _rows(self) -> Iterable[tuple[str, _Row]]:
        """Give the differing rows of either side; of what only one has, the top at least."""

    @abstractmethod
    def _references(self) -> Iterable[str]:
        """Give the paths at which nested catalogs or bind mountpoints differ."""

    @abstractmethod
    def _chunked(self) -> Iterable[tuple[str, tuple[int, int]]]:
        """Give the keys of files that both have and whose chunks differ."""

    @abstractmethod
    def _row(self, side: str, first: int, second: int) -> tuple[Any, ...] | None:
        """Look up the parent's key and the name of a row."""

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
            row = self._row(*key)
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


class _Read(_Changes):
    """Changes between two small catalogs, which were read whole."""

    def __init__(self, before: CatalogContents, after: CatalogContents, mount: str) -> None:
        super().__init__(mount)
        self._sides = {_BEFORE: before, _AFTER: after}

    def _pairs(self) -> Iterator[tuple[str, CatalogContents, CatalogContents]]:
        before, after = self._sides.values()
        return iter(((_AFTER, after, before), (_BEFORE, before, after)))

    def _rows(self) -> Iterator[tuple[str, _Row]]:
        for side, rows, others in self._pairs():
            for row in rows.rows - others.rows:
                yield side, (*row[:4], row[4 + _NAME])

    def _references(self) -> Iterator[str]:
        for _, mine, others in self._pairs():
            yield from (str(row[1]) for row in mine.references - others.references)

    def _chunked(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for side, mine, others in self._pairs():
            for key in {row[:2] for row in mine.chunks - others.chunks}:
                if key in others.by_key:
                    yield side, key

    def _row(self, side: str, first: int, second: int) -> tuple[Any, ...] | None:
        row = self._sides[side].by_key.get((first, second))
        return None if row is None else (*row[2:4], row[4 + _NAME])


class _Attached(_Changes):
    """Changes between two catalogs in one connection."""

    def __init__(self, both: sqlite3.Connection, mount: str, columns: tuple[str, ...]) -> None:
        super().__init__(mount)
        self._both = both
        self._columns = columns

    def _any(self, table: str) -> bool:
        """Tell whether either side has a row in a table; most catalogs have none in the rarer ones."""
        exists = (f"EXISTS (SELECT 1 FROM {side}.{table})" for side in (_BEFORE, _AFTER))  # noqa: S608
        return bool(self._both.execute(f"SELECT {' OR '.join(exists)}").fetchone()[0])

    def _rows(self) -> Iterator[tuple[str, _Row]]:
        rows = self._by_rowid()
        yield from self._by_key() if rows is None else rows

    def _by_rowid(self) -> list[tuple[str, _Row]] | None:
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

    def _by_key(self) -> Iterator[tuple[str, _Row]]:
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

    def _references(self) -> Iterator[str]:
        tables = ["nested_catalogs"]
        if columns_of(self._both, "bind_mountpoints") and self._any("bind_mountpoints"):
            tables.append("bind_mountpoints")
        columns = "path, sha1, size"
        for table in tables:
            for side, other in ((_BEFORE, _AFTER), (_AFTER, _BEFORE)):
                sql = f"SELECT {columns} FROM {side}.{table} EXCEPT SELECT {columns} FROM {other}.{table}"  # noqa: S608
                for row in self._both.execute(sql):
                    yield str(row[0])

    def _chunked(self) -> Iterator[tuple[str, tuple[int, int]]]:
        if not self._any("chunks"):
            return
        columns = "md5path_1, md5path_2, offset, size, hash"
        for side, other in ((_BEFORE, _AFTER), (_AFTER, _BEFORE)):
            differing = f"SELECT {columns} FROM {side}.chunks EXCEPT SELECT {columns} FROM {other}.chunks"  # noqa: S608
            of_both = f"JOIN {other}.catalog USING (md5path_1, md5path_2)"  # the others' rows differ already
            for row in self._both.execute(f"SELECT DISTINCT md5path_1, md5path_2 FROM ({differing}) {of_both}"):  # noqa: S608
                yield side, row

    def _row(self, side: str, first: int, second: int) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._both.execute(
            f"SELECT parent_1, parent_2, name FROM {side}.catalog WHERE md5path_1 = ? AND md5path_2 = ?",  # noqa: S608
            (first, second),
        ).fetchone()
        return row


Left = tuple[str, Dirent]
"""A path and what is to be put there by other means."""

_BATCH = 5000
_DIRECTORY, _REGULAR = 0o4, 0o10  # of a mode, shifted by 12 bits
_SLOW = -1


class RowCopy:
    """``source`` is the revision with the change, ``target`` what it is merged into."""

    def __init__(self, source: Revision, target: Edit) -> None:
        self._source = source
        self._target = target
        self._flags: dict[tuple[object, bool], int] = {}
        self._groups: dict[tuple[str, int], int] = {}
        self._next_group: dict[str, int] = {}

    def directory(self, path: str, entry: Dirent) -> list[Left]:
        """Add a plain directory with all that is in it; what is left.

        Raises CatalogError, DestinationError, MergeError.
        """
        catalog = self._source.inside(path)
        rows = catalog.rows_in(path)
        self._target.add(path, entry.changed(linkcount=2 + self._subdirectories(catalog, path, rows)))
        batch = _Batch(self._target, path)
        left: list[Left] = []
        entered = [self._copied(catalog, path, rows, batch, left)]
        while entered:
            child = next(entered[-1], None)
            if child is None:
                entered.pop()
                continue
            below, row = child
            inner = catalog.rows_in(below)
            batch.add((*row[:4], 2 + self._subdirectories(catalog, below, inner), *row[5:]))
            entered.append(self._copied(catalog, below, inner, batch, left))
        batch.flush()
        return left

    def files(self, path: str, rows: list[tuple[Any, ...]]) -> None:
        """Add files, symlinks or specials of a directory by their rows, as ``Catalog.rows_in`` gives them."""
        batch = _Batch(self._target, path)
        for _ in self._copied(self._source.inside(path), path, rows, batch, []):
            raise CatalogError(path, "a directory where a file was expected")
        batch.flush()

    def group(self, path: str, group: int) -> int:
        """The number, in the catalog that it comes into, of the hard-link group of the entry at ``path``."""
        key = (parent_of(path), group)
        if key not in self._groups:
            catalog = self._target.holder(path)
            following = self._next_group.get(catalog.path) or catalog.next_hardlink_group()
            self._groups[key] = following
            self._next_group[catalog.path] = following + 1
        return self._groups[key]

    def _subdirectories(self, catalog: Catalog, above: str, rows: list[tuple[Any, ...]]) -> int:
        """Return how many plain directories are among the rows; others count their link when they are put there."""
        typed = (row for row in rows if type(row[5]) is not int or row[5] >> 12 == _DIRECTORY)
        entries = [catalog.entry(above, row[2:]) for row in typed]
        return sum(1 for entry in entries if entry.is_directory and not (entry.mountpoint or entry.bind))

    def _copied(
        self, catalog: Catalog, above: str, rows: list[tuple[Any, ...]], batch: _Batch, left: list[Left]
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Put the rows of one directory into the batch, but for those of directories, which are given out."""
        parent = path_hash(above)
        flags_of = self._flags
        for row in rows:
            first, second, links, digest, size, mode, mtime, mtimens, flags, name, symlink, uid, gid, xattr = row
            path = f"{above}/{name}"
            if (fault := name_fault(str(name)) or size_fault(size)) is not None:
                raise MergeError(path, fault)
            if type(name) is not str or (first, second) != path_hash(path):
                raise CatalogError(path, "its row does not match its parent and name")
            regular = type(mode) is int and mode >> 12 == _REGULAR
            clean = flags_of.get((flags, digest is None)) if regular else _SLOW
            if clean is None:
                clean = flags_of[flags, digest is None] = self._clean_flags(catalog.entry(path, row[2:]))
            if (
                clean != _SLOW
                and links == 1
                and type(size) is type(mtime) is type(uid) is type(gid) is int
                and type(symlink) is str
                and xattr is None
                and (mtimens is None or type(mtimens) is int)
                and (digest is None or (type(digest) is bytes and len(digest) == DIGEST_BYTES))
            ):
                batch.regular += 1
                batch.file_size += size
                attributes = (1, digest, size, mode, mtime, mtimens, clean, name, symlink, uid, gid, None)
                batch.add((first, second, *parent, *attributes))
                continue
            entry = catalog.entry(path, row[2:])
            if entry.is_directory and (entry.mountpoint or entry.bind):
                left.append((path, entry))
                continue
            if entry.hardlink_group:
                entry = entry.changed(hardlink_group=self.group(path, entry.hardlink_group))
            chunks = catalog.chunks(path, entry) if entry.chunked else ()
            batch.others.append(Counts.of(entry, len(chunks)))
            batch.chunks += [(first, second, chunk.offset, chunk.size, chunk.hash.digest) for chunk in chunks]
            made = (first, second, *parent, *entry.changed(nested_root=False).to_row())
            if entry.is_directory:
                yield path, made
            else:
                batch.add(made)

    @staticmethod
    def _clean_flags(entry: Dirent) -> int:
        """Return what the flags of a regular file's row become; some are better handled one by one."""
        return entry.flags if not (entry.chunked or entry.external) else _SLOW


def size_fault(size: object) -> str | None:
    """Return why no entry can have this size, in words that follow its path; None if one can."""
    if isinstance(size, int) and not 0 <= size <= LARGEST:
        return f"has a size of {size} bytes"
    return None


@dataclass(slots=True)
class _Batch:
    """Rows on their way into the catalog that holds the entries of ``directory``."""

    target: Edit
    directory: str
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    chunks: list[tuple[Any, ...]] = field(default_factory=list)
    others: list[Counts] = field(default_factory=list)
    regular: int = 0
    file_size: int = 0

    def add(self, row: tuple[Any, ...]) -> None:
        self.rows.append(row)
        if len(self.rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        counts = Counts.sum([Counts(regular=self.regular, file_size=self.file_size), *self.others])
        self.target.add_rows(self.directory, self.rows, self.chunks, counts)
        self.rows, self.chunks, self.others = [], [], []
        self.regular = self.file_size = 0
