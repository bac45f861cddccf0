"""The differences of two revisions, counted by place: what goes, comes back and changes for readers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from include.cvmfs.format.catalog import AUTO_MARKER, MARKER
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.paths import is_below, name_of, path_and_above
from include.cvmfs.revision.diff import Difference, DifferingEntry

MOST = 1000
"""Paths outside of builds that are kept apart; of more only the total is known."""
_OF_A_DIRECTORY = frozenset({"mtime", "nested catalog", "links"})


@dataclass(slots=True)
class ChangedFiles:
    """How many files and bytes go, come back or change. Files are all entries but directories; sizes in bytes."""

    gone: int = 0
    bytes_gone: int = 0
    back: int = 0
    bytes_back: int = 0
    changed: int = 0

    def count(self, difference: DifferingEntry) -> None:
        """A changed file counts as one; its old bytes go, and its new ones come back."""
        before, after = _file(difference.before), _file(difference.after)
        if before is not None and after is not None:
            self.changed += 1
        else:
            self.gone += before is not None
            self.back += after is not None
        self.bytes_gone += _bytes(before)
        self.bytes_back += _bytes(after)

    def __add__(self, other: ChangedFiles) -> ChangedFiles:
        return ChangedFiles(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def __str__(self) -> str:
        parts = [f"{self.gone} files go"] * bool(self.gone) + [f"{self.back} come back"] * bool(self.back)
        parts += [f"{self.changed} change"] * bool(self.changed)
        return f"{', '.join(parts) or 'no files'}; {self.bytes_gone} bytes go, {self.bytes_back} come back"


@dataclass(frozen=True, slots=True)
class ChangedPlaces:
    """What differs, by place. ``elsewhere``: topmost paths that belong to no given place, each with how it differs.

    ``more``: entries below no place that are only in the total.
    """

    total: ChangedFiles
    at: Mapping[str, ChangedFiles] = field(default_factory=dict)
    elsewhere: Mapping[str, Difference] = field(default_factory=dict)
    more: int = 0


def by_place(differences: Iterable[DifferingEntry], places: Collection[str], *, most: int = MOST) -> ChangedPlaces:
    """Count differences, parents first as `diff` gives them: each for its place, else for the topmost path.

    A directory of which only times and counters differ is no change for readers. The directories above a place that
    go or come back with it, and markers of catalogs, are in the total only.
    """
    known, above = frozenset(places), {up for place in places for up in path_and_above(place)[1:]}
    total, at, elsewhere, more = ChangedFiles(), dict[str, ChangedFiles](), dict[str, Difference](), 0
    here: str | None = None
    for difference in differences:
        total.count(difference)
        if (
            here is None
            or not is_below(difference.path, here)
            or (difference.path in known and difference.path != here)
        ):
            here = next((up for up in path_and_above(difference.path) if up in known), None)
            if here is None and not _is_unseen(difference) and difference.path not in above:
                if len(elsewhere) == most:
                    more += 1
                    continue
                here = difference.path
                elsewhere[here] = difference.kind
        if here is not None:
            at.setdefault(here, ChangedFiles()).count(difference)
    return ChangedPlaces(total, at, elsewhere, more)


def _is_unseen(difference: DifferingEntry) -> bool:
    after = difference.after
    if name_of(difference.path) in (MARKER, AUTO_MARKER):
        return True
    return (
        difference.kind is Difference.CHANGED
        and bool(after and after.is_directory)
        and _OF_A_DIRECTORY.issuperset(difference.what)
    )


def _file(entry: Dirent | None) -> Dirent | None:
    return None if entry is None or entry.is_directory else entry


def _bytes(entry: Dirent | None) -> int:
    return entry.size if entry is not None and entry.is_regular else 0
