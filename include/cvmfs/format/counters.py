"""The statistics counters of a catalog, as values with exact arithmetic (docs/formats.md, statistics counters)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from include.cvmfs.format.dirent import Dirent


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
        """What one row of a catalog, with ``chunks`` rows of chunks, adds to its own counters.

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
        """As they are written; no counter leaves the range of SQLite, so that none hinders who counts further."""
        return [
            (f"{half}_{name}", max(-_MOST - 1, min(getattr(counts, name), _MOST)))
            for half, counts in (("self", self.own), ("subtree", self.below)) for name in NAMES
        ]  # fmt: skip


_MOST = (1 << 63) - 1


def absurd_counters(statistics: Statistics) -> list[str]:
    """The counters of a catalog that no tree can have, with their values."""
    return [f"{name} {value}" for name, value in statistics.rows() if not -MISCOUNTED <= value <= LARGEST]
