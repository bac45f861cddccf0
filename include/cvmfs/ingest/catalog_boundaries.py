"""Where a tree is cut into catalogs: by its own markers, the rules of a dirtab, and weight; and how large each may be.

All of this is settled on the spool, before the first catalog is made (docs/formats.md, nested catalogs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.format.catalog import AUTO_MARKER, MARKER
from include.cvmfs.ingest.autocatalog import Balance, Heavy, Weights, balance, too_heavy
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
