"""Nested catalogs that a change brings, read before they become part of a revision.

A merge swaps them whole. One that cannot be read, counted or followed would stop other publishers' commits and every
collection for as long as a revision has it. They are few, and each is read once.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass

from include.cvmfs.errors import CatalogError, CvmfsError, FormatError, MergeError, ObjectError
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.counters import absurd_counters
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.revision import Revision

_AT_ONCE = 16
_REMEMBERED = 100_000  # catalogs that were found sound


@dataclass(frozen=True, slots=True)
class _Mounted:
    """A catalog that another one shows at ``path``; ``made_for``: the path that it must be made for, None if any."""

    path: str
    made_for: str | None
    hash: ObjectHash


def require_sound(base: Revision, path: str, name: ObjectHash, *, bind: bool = False) -> None:
    """Require that the catalog to be mounted at ``path``, and all below it, can be part of a revision.

    ``base``: the revision that the change was derived from; what that has at the same place is not read. ``bind``: the
    catalog is of another path. Raises MergeError, and ObjectMissing or ObjectDamaged for one that is not stored.
    """
    catalogs, sound = base.catalogs, base.catalogs.sound
    if name.digest in sound:
        return
    waiting, read = deque([_Mounted(path, None if bind else path, name)]), set[bytes]()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="new-catalogs") as pool:
        while waiting:
            batch = [waiting.popleft() for _ in range(min(_AT_ONCE, len(waiting)))]
            fetch = pool.map if len(batch) > 1 else map
            fetched = fetch(lambda mounted: _database(catalogs, mounted), batch)
            for mounted, database in zip(batch, fetched, strict=True):
                read.add(mounted.hash.digest)
                waiting.extend(
                    below for below in _checked(mounted, database)
                    if below.hash.digest not in sound and below.hash.digest not in read and not _has(base, below)
                )  # fmt: skip
    if len(sound) > _REMEMBERED:
        sound.clear()
    sound.update(read)


def _has(base: Revision, mounted: _Mounted) -> bool:
    """Whether the base has it in this place; what cannot be found out there is read."""
    with suppress(CvmfsError):
        holder = base.holder(mounted.path)
        there = holder.bind_at(mounted.path) if mounted.made_for is None else holder.nested_at(mounted.path)
        return there is not None and there.hash.digest == mounted.hash.digest
    return False


def _database(catalogs: CatalogCache, mounted: _Mounted) -> bytes:
    try:
        return catalogs.database(mounted.hash)
    except ObjectError:
        raise
    except FormatError as fault:
        raise MergeError(mounted.path, f"its catalog {mounted.hash} cannot be unpacked ({fault})") from fault


def _checked(mounted: _Mounted, database: bytes) -> list[_Mounted]:
    """What it shows in turn. Raises MergeError."""
    try:
        with closing(Catalog.load(database, mounted.hash)) as catalog:
            if (fault := _fault(catalog, mounted)) is not None:
                raise MergeError(mounted.path, f"its catalog {mounted.hash} {fault}")
            return [
                *(_Mounted(nested.path, nested.path, nested.hash) for nested in catalog.nested()),
                *(_Mounted(bind.path, None, bind.hash) for bind in catalog.binds()),
            ]
    except (CatalogError, FormatError) as fault:
        raise MergeError(mounted.path, f"its catalog {mounted.hash} cannot be used ({fault})") from fault


def _fault(catalog: Catalog, mounted: _Mounted) -> str | None:
    """Why it cannot be part of a revision. Raises CatalogError, FormatError."""
    if mounted.made_for is not None and catalog.path != mounted.made_for:
        return f"was made for {catalog.path or '/'}"
    if not catalog.root_entry.is_directory:
        return "has a root that is no directory"
    if catalog.revision < 0:
        return f"has the revision {catalog.revision}"
    catalog.previous_revision  # noqa: B018 - raises for one that is no hash
    if (fault := catalog.row_fault()) is not None:
        return fault
    if absurd := absurd_counters(catalog.statistics):
        return f"has the counter {absurd[0]}"
    for nested in catalog.nested():
        entry = catalog.lookup(nested.path)
        if entry is None or not entry.mountpoint:
            return f"registers a nested catalog at {nested.path!r}, where it has no mountpoint"
    return None
