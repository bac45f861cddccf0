"""New files and directories copied from one revision into another at the same paths, many rows at a time.

What a merge would do entry by entry, for changes of many thousand: rows are checked and cleaned, not turned into
values. Link counts and counters are exact; nested catalogs and bind mountpoints are left to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CatalogError, MergeError
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import DIGEST_BYTES, path_hash
from include.cvmfs.format.paths import name_fault, parent_of
from include.cvmfs.format.schema import LARGEST, Counts
from include.cvmfs.revision.revision import Revision

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
            found = next(entered[-1], None)
            if found is None:
                entered.pop()
                continue
            below, row = found
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
