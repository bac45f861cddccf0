"""What a stock receiver makes of a commit, predicted before it and checked after it; pure but for reading catalogs.

It merges entry by entry: what it compares and what it leaves out is in docs/formats.md, merge of a stock gateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from include.cvmfs.format.counters import Counts
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.paths import ancestors, is_below, parent_of
from include.cvmfs.revision.revision import Revision
from include.publishers.capabilities import Operation


@dataclass(frozen=True, slots=True)
class LossyEntry:
    """An entry that would not arrive as it is; ``breaks``: the receiver dies of it, whatever is allowed."""

    path: str
    operation: Operation
    breaks: bool = False


def concerns(old: Revision, new: Revision, lease: str) -> Iterator[LossyEntry]:
    """What gets lost of the change ``old`` -> ``new`` inside the lease. Catalogs that are swapped are not walked."""
    for path, before, after in _differing(old, new, lease):
        if before is not None and before.is_regular and before.linkcount > 1:
            yield LossyEntry(path, Operation.ENTRY_HARD_LINKS, breaks=True)
        elif any(entry is not None and entry.is_special for entry in (before, after)):
            yield LossyEntry(path, Operation.ENTRY_SPECIALS)
        elif after is not None and after.is_regular and after.linkcount > 1:
            yield LossyEntry(path, Operation.ENTRY_HARD_LINKS)
        elif before is not None and after is not None and _compared(before) == _compared(after):
            if (before.uid, before.gid) != (after.uid, after.gid):
                yield LossyEntry(path, Operation.ENTRY_OWNERS)
            if before.xattr != after.xattr:
                yield LossyEntry(path, Operation.ENTRY_XATTRS)


def stands(new: Revision, after: Revision, lease: str) -> bool:
    """Whether a revision holds at the leased path what a change wanted there.

    What the receiver rebuilt has other hashes and the same entries, so nested catalogs are compared by hash first,
    then by their counters and entries.
    """
    if not lease:
        return _same_directory(new, after, "")
    if any(view.row(parent_of(lease)) is None for view in (new, after)):
        return new.row(lease) is None
    return _same(new, after, lease, new.row(lease), after.row(lease))


def reverted(
    *, base: Revision, new: Revision, before: Revision, after: Revision, lease: str, exact: bool = True
) -> list[str]:
    """What a commit did outside of its lease, in words; nothing if it kept to it.

    ``base`` -> ``new`` is the change, ``before`` -> ``after`` the revision that the gateway made of it. Compared are
    the entries and nested catalogs of every directory on the way to the lease, and the counters of every catalog on it:
    what others had done between ``base`` and ``before`` must stand. The cost is that of the catalogs on the way.
    ``exact``: whether the change arrives whole, so that counters must grow by what it adds.
    """
    found = []
    if lease:
        for above in ["", *ancestors(parent_of(lease))]:
            sides = [_entries(view, above) for view in (before, after)]
            on_the_way = {name for side in sides for name in side if is_below(lease, f"{above}/{name}")}
            found += [
                f"{above}/{name} is not what it was in the revision before"
                for name in sorted((sides[0].keys() | sides[1].keys()) - on_the_way)
                if sides[0].get(name) != sides[1].get(name)
            ]
            catalogs = [_references(view, above, lease) for view in (before, after)]
            found += [
                f"the nested catalog {path} is not what it was in the revision before"
                for path in sorted(catalogs[0].keys() | catalogs[1].keys())
                if catalogs[0].get(path) != catalogs[1].get(path)
            ]
        found = list(dict.fromkeys(found))
        first, second = (_nested(view, lease) for view in (base, before))
        if first != second:
            found.append(f"{lease} held something else by then, which was replaced")
    if exact and _growth(base, new) != _growth(before, after):
        found.append("the repository's counters did not change by what the change adds to them")
    return found


def _growth(old: Revision, new: Revision) -> Counts:
    earlier, later = (view.catalogs.completed(view.root).statistics.total for view in (old, new))
    return later - earlier


def _entries(view: Revision, path: str) -> dict[str, tuple[Dirent, bytes | None]]:
    """A directory's entries with the hashes of the nested catalogs; link counts of directories are others' work."""
    above = view.row(path)
    if above is None or not above.is_directory:
        return {}
    return {
        entry.name: (
            entry.changed(linkcount=0) if entry.is_directory else entry,
            _nested(view, f"{path}/{entry.name}", entry),
        )
        for entry in view.inside(path).listing(path)
    }


def _references(view: Revision, path: str, lease: str) -> dict[str, bytes]:
    """The catalogs mounted in the catalog of a directory, but for those on the way to the lease or in it."""
    return {
        nested.path: nested.hash.digest
        for nested in view.inside(path).nested()
        if not (is_below(nested.path, lease) or is_below(lease, nested.path))
    }


def _nested(view: Revision, path: str, entry: Dirent | None = None) -> bytes | None:
    if entry is not None and not entry.mountpoint:
        return None
    reference = view.holder(path).nested_at(path)
    return reference.hash.digest if reference else None


def _same(left: Revision, right: Revision, path: str, here: Dirent | None, there: Dirent | None) -> bool:
    if here is None or there is None:
        return here is there
    if here.mountpoint != there.mountpoint:
        return False
    if here.mountpoint:
        first, second = left.holder(path).nested_at(path), right.holder(path).nested_at(path)
        if first is not None and second is not None and first.hash.digest == second.hash.digest:
            return True
        if left.inside(path).statistics.total != right.inside(path).statistics.total:
            return False
    if here.is_directory and there.is_directory:
        return (here.mode, here.mtime) == (there.mode, there.mtime) and _same_directory(left, right, path)
    return _compared(here)[1:] == _compared(there)[1:]


def _same_directory(left: Revision, right: Revision, path: str) -> bool:
    sides = [{entry.name: entry for entry in view.inside(path).listing(path)} for view in (left, right)]
    return sides[0].keys() == sides[1].keys() and all(
        _same(left, right, f"{path}/{name}", sides[0][name], sides[1][name]) for name in sides[0]
    )


def _differing(old: Revision, new: Revision, lease: str) -> Iterator[tuple[str, Dirent | None, Dirent | None]]:
    """In the order of the paths, so that a refusal names the same entry each time."""
    pending = [lease] if lease else [f"/{name}" for name in _names(old, new, "")]
    while pending:
        path = pending.pop()
        before, after = (_lookup(view, path) for view in (old, new))
        if before is not None and after is not None and before.mountpoint and after.mountpoint:
            continue  # skipped or swapped, and never walked
        if before != after:
            yield path, before, after
        if any(entry is not None and entry.is_directory for entry in (before, after)):
            pending += [f"{path}/{name}" for name in _names(old, new, path)]


def _names(old: Revision, new: Revision, path: str) -> list[str]:
    """The names in a directory of either side, the last one first: they are taken from the end."""
    found: set[str] = set()
    for view, goes in ((old, True), (new, False)):
        entry = _lookup(view, path)
        # a nested catalog that goes is not walked; one that comes is
        if entry is not None and entry.is_directory and not (goes and entry.mountpoint):
            found |= {child.name for child in view.inside(path).listing(path)}
    return sorted(found, reverse=True)


def _lookup(view: Revision, path: str) -> Dirent | None:
    above = view.row(parent_of(path)) if path else None
    return view.row(path) if not path or (above is not None and above.is_directory) else None


def _compared(entry: Dirent) -> tuple[object, ...]:
    """What the receiver compares of an entry: neither its owner nor the values of its extended attributes."""
    return (
        entry.linkcount, entry.size, entry.mode, entry.mtime, entry.mtime_ns, entry.symlink, entry.hash,
        bool(entry.xattr), entry.mountpoint, entry.chunked, entry.external, entry.bind, entry.hidden, entry.direct_io,
    )  # fmt: skip
