"""Checks a tree that can be listed without being read: what cannot be published is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.ingest.catalog_boundaries import Cuts, cut
from include.cvmfs.ingest.spool import Spool
from include.cvmfs.sources.source import OutlinedSource, SourceLimits, TreeSource, printable


def survey(
    source: TreeSource, destination: str, *, limits: SourceLimits, cuts: Cuts, spool: Callable[[], Spool]
) -> None:
    """Do nothing for a source that can only be read once; else raise SourceError for what is beyond a limit.

    ``spool`` makes the spool that the tree is going to be taken with. Names are counted first, which costs little; only
    a tree that has more of them than a catalog may hold is gone through in full.
    """
    if not isinstance(source, OutlinedSource):
        return
    members = 1
    for path, size in source.outline(sizes=bool(limits.file_bytes)):
        members += 1
        check_member(path, members, size, limits, source.name)
    if not cuts.entries or members < cuts.entries:
        return
    with spool() as rows:
        for entry, _ in source.entries():
            rows.add(entry)
        rows.complete()
        cut(rows, destination, cuts, lambda: b"")


def check_member(path: str, members: int, size: int, limits: SourceLimits, source: str) -> None:
    """Raise SourceError for one member too many, or a file of more bytes than one may have."""
    if limits.file_bytes and size > limits.file_bytes:
        problem = f"has {size} bytes, more than the {limits.file_bytes} that one file may have"
        raise beyond(path, f"{problem}; split it, leave it out, or raise the limit", source)
    if members > limits.members:
        raise beyond(
            path, f"is beyond the limit of {limits.members} members; split the tree or raise the limit", source
        )


def beyond(path: str, detail: str, source: str) -> SourceError:
    return SOURCE_LIMIT_EXCEEDED(printable(path), f"{detail} (artifact {printable(source)})")
