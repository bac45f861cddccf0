"""Automatic catalogs: where a tree is to be cut so that no catalog is too heavy, by the algorithm of the stock tools.

The weight of a directory is the number of entries that it brings into its catalog, itself included. Everything here
works on entries in path order (:meth:`Spool.outline`), and holds little more than the way to the current one.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Set as AbstractSet
from dataclasses import dataclass, field

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.format.catalog import AUTO_MARKER, MARKER
from include.cvmfs.ingest.spool import Spool, path_of
from include.cvmfs.sources.dirtab import Dirtab
from include.cvmfs.sources.source import printable

MARKER_MODE = 0o644
AUTO_MODE = 0o600
_ROOT = b""
_NAMED_AT_MOST = 3


@dataclass(frozen=True, slots=True)
class Cuts:
    """``dirtab``: rules for absolute paths in the repository; ``auto``: cut by weight as well, None does not.

    ``entries``: of one catalog, at most; 0 for no limit.
    """

    dirtab: Dirtab | None = None
    auto: Weights | None = None
    entries: int = 500_000


def cut(spool: Spool, destination: str, cuts: Cuts, empty: Callable[[], bytes]) -> tuple[str, ...]:
    """Put into a complete spool the markers of all catalogs, that of its root included; what was done, in words.

    ``empty`` gives the digest of the empty file, and sees to it that it is stored. Raises SourceError for a
    catalog that would be too large, SourceError where a marker cannot be.
    """
    notes = []
    if cuts.dirtab is not None:
        matching = [folder for folder in spool.directories() if cuts.dirtab.matches(_place(destination, folder))]
        new = [folder for folder in matching if folder not in spool.markers and folder != _ROOT]
        for folder in new:
            spool.plant(folder, MARKER, MARKER_MODE, empty())
        if new:
            notes.append(f"{len(new)} nested catalogs by .cvmfsdirtab")
    if _ROOT not in spool.markers:
        spool.plant(_ROOT, MARKER, MARKER_MODE, empty())
    if cuts.auto is not None:
        notes += _balanced(spool, cuts.auto, empty)
    if cuts.entries and spool.members > cuts.entries:
        for heavy in too_heavy(spool.outline(), spool.markers, cuts.entries):
            raise _over(heavy, destination, cuts)
    return tuple(notes)


def _balanced(spool: Spool, weights: Weights, empty: Callable[[], bytes]) -> list[str]:
    if spool.members <= weights.most and not spool.automatic:
        return []
    done: Balance = balance(spool.outline(), spool.markers, spool.automatic, weights)
    for folder in done.merged:
        spool.unmark(folder)
    for folder in done.split:
        spool.plant(folder, MARKER, AUTO_MODE, empty())
        spool.plant(folder, AUTO_MARKER, AUTO_MODE, empty())
    notes = [f"automatic nested catalogs at {_named(done.split)}"] if done.split else []
    return notes + ([f"automatic nested catalogs gone at {_named(done.merged)}"] if done.merged else [])


def _named(folders: tuple[bytes, ...]) -> str:
    names = ", ".join(printable(path_of(folder)) for folder in folders[:_NAMED_AT_MOST])
    more = len(folders) - _NAMED_AT_MOST
    return f"{names} and {more} more" if more > 0 else names


def _place(destination: str, folder: bytes) -> str:
    return f"{destination}/{path_of(folder)}" if folder else destination


def _over(heavy: Heavy, destination: str, cuts: Cuts) -> SourceError:
    problem = f"its catalog would have {heavy.entries} entries, more than {cuts.entries}"
    cure = "turn automatic catalogs on" if cuts.auto is None else "lower the least weight of automatic catalogs"
    if heavy.heaviest is not None:
        name = printable(_place(destination, heavy.heaviest))
        cure = f"put a {MARKER} into directories below it ({name} is the heaviest, with {heavy.weight} entries), {cure}"
    else:
        cure = "spread its files over several directories with catalogs of their own"
    return SOURCE_LIMIT_EXCEEDED(printable(_place(destination, heavy.key)), f"{problem}; {cure}, or raise the limit")


Outline = Iterable[tuple[bytes, int, int]]
_MARKERS = 2  # entries that an automatic catalog has more than its directory had


@dataclass(frozen=True, slots=True)
class Weights:
    """A catalog of more than ``most`` entries is split; an automatic one of fewer than ``least`` goes back."""

    most: int = 100_000
    least: int = 1_000


@dataclass(frozen=True, slots=True)
class Balance:
    """Keys of the directories that become automatic catalogs, and of those that are no catalogs any more."""

    split: tuple[bytes, ...]
    merged: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Heavy:
    """A catalog with its entries, and its heaviest directory with its weight, if it has any."""

    key: bytes
    entries: int
    heaviest: bytes | None
    weight: int


def balance(outline: Outline, markers: AbstractSet[bytes], automatic: AbstractSet[bytes], weights: Weights) -> Balance:
    """Return how to cut a tree whose catalogs are at ``markers`` (the root's among them).

    ``automatic``: directories with the other marker, whose catalogs may go. Going through the directories from below,
    while one is heavier than half of what a catalog may hold, its heaviest directory becomes a catalog (of equal ones
    the first by name). A catalog that goes is counted into the one above it, before that one is considered.
    """
    split: list[bytes] = []
    merged: list[bytes] = []

    def leave(folder: _Folder, above: _Folder | None) -> None:
        catalog = folder.catalog
        while folder.weight > weights.most // 2 and folder.children:
            # Whether the catalog is too heavy at all is known when it ends; until then this is only remembered.
            heaviest = max(folder.children, key=lambda child: child[1])
            if heaviest[1] < weights.least:
                break
            folder.children.remove(heaviest)
            folder.weight -= heaviest[1] - 1
            catalog.cuts.append(heaviest[0])
        if folder.is_catalog:
            if above is not None and folder.key in automatic and catalog.entries < weights.least:
                merged.append(folder.key)
                folder.weight -= _MARKERS
                above.catalog.entries += catalog.entries - 1 - _MARKERS
                folder.is_catalog = False
            elif catalog.entries > weights.most:
                split.extend(catalog.cuts)
        if above is not None:
            above.add(folder, worth=weights.least)

    _walk(outline, markers, leave)
    return Balance(tuple(split), tuple(merged))


def too_heavy(outline: Outline, markers: AbstractSet[bytes], limit: int) -> list[Heavy]:
    """The catalogs of more than ``limit`` entries, in path order."""
    beyond: list[Heavy] = []

    def leave(folder: _Folder, above: _Folder | None) -> None:
        if folder.is_catalog and folder.catalog.entries > limit:
            heaviest, weight = max(folder.children, key=lambda child: child[1], default=(None, 0))
            beyond.append(Heavy(folder.key, folder.catalog.entries, heaviest, weight))
        if above is not None:
            above.add(folder, worth=0)
            if len(above.children) > 1:
                above.children = [max(above.children, key=lambda child: child[1])]

    _walk(outline, markers, leave)
    return sorted(beyond, key=lambda heavy: heavy.key)


@dataclass(slots=True)
class _Catalog:
    entries: int = 1
    cuts: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    """An open directory: its weight so far, and those directories in it that could become catalogs, with theirs."""

    key: bytes
    catalog: _Catalog
    is_catalog: bool
    weight: int = 1
    children: list[tuple[bytes, int]] = field(default_factory=list)

    def add(self, child: _Folder, worth: int) -> None:
        """Take over a directory that is done; ``worth``: the weight from which on it is worth remembering."""
        if child.is_catalog:
            self.weight += 1
            return
        self.weight += child.weight
        if child.weight >= worth:
            self.children.append((child.key, child.weight))


def _walk(outline: Outline, markers: AbstractSet[bytes], leave: Callable[[_Folder, _Folder | None], None]) -> None:
    """Call ``leave(folder, above)`` for every directory after all that is below it; entries are counted already."""
    folders: list[_Folder] = []
    for key, parent, mode in outline:
        if not key:
            folders.append(_Folder(key, _Catalog(), is_catalog=True))
            continue
        above = key[:parent]
        while folders[-1].key != above:
            folder = folders.pop()
            leave(folder, folders[-1])
        folders[-1].catalog.entries += 1
        if not stat.S_ISDIR(mode):
            folders[-1].weight += 1
        elif key in markers:
            folders.append(_Folder(key, _Catalog(), is_catalog=True))
        else:
            folders.append(_Folder(key, folders[-1].catalog, is_catalog=False))
    while folders:
        folder = folders.pop()
        leave(folder, folders[-1] if folders else None)
