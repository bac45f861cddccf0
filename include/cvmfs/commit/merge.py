"""Three-way merge: what a change did to its base, inside the leased path, is done to the current revision.

Where both sides have a nested catalog at one place, it is swapped whole and not walked, so the cost does not grow
with the tree; nor does it with a directory, where one entry of many differs. A place that is no longer as the base had
it is refused, never reverted; a place that already is as the change wants it is left alone, so a commit that is
repeated finds nothing to do.
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from include.cvmfs.commit.catalog_changes import CatalogComparison, Names, RowCopy, size_fault
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import BaseChanged, CatalogError, CvmfsError, FormatError, MergeError, ObjectError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent, Flag
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.paths import is_below, name_fault, name_of, parent_of
from include.cvmfs.format.schema import absurd_counters
from include.cvmfs.revision.revision import Revision, require_size

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
    """Tell whether the base has it in this place; what cannot be found out there is read."""
    with suppress(CvmfsError):
        holder = base.holder(mounted.path)
        reference = holder.bind_at(mounted.path) if mounted.made_for is None else holder.nested_at(mounted.path)
        return reference is not None and reference.hash.digest == mounted.hash.digest
    return False


def _database(catalogs: CatalogCache, mounted: _Mounted) -> bytes:
    try:
        return catalogs.database(mounted.hash)
    except ObjectError:
        raise
    except FormatError as fault:
        raise MergeError(mounted.path, f"its catalog {mounted.hash} cannot be unpacked ({fault})") from fault


def _checked(mounted: _Mounted, database: bytes) -> list[_Mounted]:
    """Return what it shows in turn. Raises MergeError."""
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
    """Return why it cannot be part of a revision. Raises CatalogError, FormatError."""
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


_CHUNKED = Flag.CHUNKED.value
_LOOKED_UP = 64  # names in a directory; of more it is faster to list all of it


def merge(catalogs: CatalogCache, *, base: ObjectHash, new: ObjectHash, current: ObjectHash, lease_path: str) -> Edit:
    """Apply the change ``base`` -> ``new`` to ``current``; ``lease_path`` is absolute, ``""`` for the whole repository.

    The returned edit has ``changed``: whether anything did. Raises MergeError for a change outside of the lease (plain
    directories that lie beside the way to it are compared, but not walked), BaseChanged when ``current`` differs from
    ``base`` where the change applies, ObjectMissing for an unknown root.
    """
    edit = Edit(catalogs, current)
    with closing(Bases(catalogs)) as bases:
        merge_into(edit, bases, base=base, new=new, lease_path=lease_path)
    return edit


class Bases:
    """Revisions that many changes are compared with: opened once, and what was found out about them kept."""

    def __init__(self, catalogs: CatalogCache) -> None:
        self.catalogs = catalogs
        self._revisions: dict[bytes, Revision] = {}
        self._comparisons: dict[bytes, CatalogComparison] = {}
        self._names: dict[tuple[bytes, bytes], Names | None] = {}

    def revision(self, root: ObjectHash) -> Revision:
        if root.digest not in self._revisions:
            self._revisions[root.digest] = Revision(self.catalogs, root, sizes=True)
        return self._revisions[root.digest]

    def names(self, catalog: Catalog, other: Catalog) -> Names | None:
        """Return what differs between two catalogs of one mountpoint; None where they must be listed."""
        old, new = catalog.name, other.name
        if old is None or new is None:
            return None
        if old.digest == new.digest:
            return {}
        if (old.digest, new.digest) not in self._names:
            if old.digest not in self._comparisons:
                self._comparisons[old.digest] = CatalogComparison(self.catalogs, catalog)
            self._names[old.digest, new.digest] = self._comparisons[old.digest].names(other)
        return self._names[old.digest, new.digest]

    def close(self) -> None:
        for revision in self._revisions.values():
            revision.close()
        for comparison in self._comparisons.values():
            comparison.close()


def merge_into(edit: Edit, bases: Bases, *, base: ObjectHash, new: ObjectHash, lease_path: str) -> None:
    """The same on top of what ``edit`` did before. If it raises, part of it is done: see ``Edit.attempt``."""
    if base.digest == new.digest:
        return
    _Merge(bases, bases.revision(base), bases.revision(new), edit, lease_path).run()


def is_touched(bases: Bases, *, since: ObjectHash, current: ObjectHash, path: str) -> bool:
    """Tell whether anything at or below ``path`` differs between two revisions."""
    if since.digest == current.digest:
        return False
    if not path:
        return True
    before, after = bases.revision(since), bases.revision(current)
    holder, other = before.holder(path), after.holder(path)
    if holder.path != other.path:
        return True
    names = bases.names(holder, other)
    if names is not None:
        return name_of(path) in names.get(parent_of(path), ())
    sides = _Listed(before, parent_of(path)), _Listed(after, parent_of(path))
    was, here = (_Found(path, side, side.entries.get(name_of(path))) for side in sides)
    return was.is_plain_directory or not was.is_identical_to(here)


@dataclass(slots=True)
class _Listed:
    """A directory on one side, read before it is changed: all of it, or only ``names`` of it where nothing else counts.

    The names of a group are links to one file.
    """

    revision: Revision
    path: str
    names: Set[str] | None = None
    entries: dict[str, Dirent] = field(default_factory=dict)
    _groups: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.names is not None:
            catalog = self.revision.inside(self.path)
            entries = [catalog.lookup(f"{self.path}/{name}") for name in self.names]
            if not any(entry.hardlink_group for entry in entries if entry is not None):
                self.entries = {entry.name: entry for entry in entries if entry is not None}
                return
        for entry in self.revision.inside(self.path).listing(self.path):
            self.entries[entry.name] = entry
            if entry.hardlink_group:
                self._groups.setdefault(entry.hardlink_group, set()).add(entry.name)

    @property
    def has_links(self) -> bool:
        return bool(self._groups)

    def links_of(self, entry: Dirent) -> Set[str]:
        return self._groups.get(entry.hardlink_group, frozenset()) if entry.hardlink_group else frozenset()


@dataclass(frozen=True, slots=True)
class _Found:
    """Content of a path on one side; ``entry``: None if it does not exist there."""

    path: str
    side: _Listed
    entry: Dirent | None

    @property
    def holder(self) -> Catalog:
        """The catalog that has the row."""
        return self.side.revision.inside(self.side.path)

    @property
    def nested(self) -> NestedRef | None:
        return self.holder.nested_at(self.path)

    @property
    def is_plain_directory(self) -> bool:
        entry = self.entry
        return entry is not None and entry.is_directory and not (entry.mountpoint or entry.bind)

    def is_as(self, other: _Found) -> bool:
        """Tell whether both are the same thing; of plain directories only the attributes count, not what they hold."""
        entry, others = self.entry, other.entry
        if entry is None or others is None:
            return entry is others
        if entry.mountpoint and others.mountpoint:
            return _same_catalog(self.nested, other.nested)
        return (
            _alike(entry, others)
            and self.side.links_of(entry) == other.side.links_of(others)
            and self._same_chunks(entry, other, others)
            and not (entry.bind and self.holder.bind_at(self.path) != other.holder.bind_at(self.path))
        )

    def is_identical_to(self, other: _Found) -> bool:
        """The same row, and the same catalog or chunks behind it."""
        entry, others = self.entry, other.entry
        if entry != others or entry is None or others is None:
            return entry == others
        return _same_catalog(self.nested, other.nested) if entry.mountpoint else self._same_chunks(entry, other, others)

    def _same_chunks(self, entry: Dirent, other: _Found, others: Dirent) -> bool:
        # A chunked file has no hash in its row: only its chunks show its content.
        return not entry.chunked or self.holder.chunks(self.path, entry) == other.holder.chunks(self.path, others)


class _Merge:
    def __init__(self, bases: Bases, base: Revision, new: Revision, edit: Edit, lease: str) -> None:
        self.bases, self.base, self.new, self.edit, self.lease = bases, base, new, edit, lease
        self._copy = RowCopy(new, edit)
        self._changed: dict[str, Names | None] = {}  # by mountpoint

    def run(self) -> None:
        if not self.lease:
            self._root()
        self._directory("")

    def _root(self) -> None:
        old, new, here = (side.root.root_entry for side in (self.base, self.new, self.edit))
        if _alike(old, new) or _alike(here, new):
            return
        if not _alike(here, old):
            raise _changed("")
        self.edit.touch("", new)

    def _directory(self, path: str) -> None:
        """Merge the entries of a directory; a side where it is no directory has no entries."""
        names = self._names(path)
        if names is not None and not names:
            return
        if names is None or len(names) > _LOOKED_UP:
            names = self._whole_rows(path, names)
        listed = names if len(names) <= _LOOKED_UP else None
        old, new = _Listed(self.base, path, listed), _Listed(self.new, path, listed)
        if old.has_links or new.has_links:
            # A name of a group may have other partners now, and its row be the same.
            old, new = _Listed(self.base, path), _Listed(self.new, path)
            names, listed = old.entries.keys() | new.entries.keys(), None
        current: _Listed | None = None
        for name in sorted(names):
            here = f"{path}/{name}"
            before, after = (_Found(here, side, side.entries.get(name)) for side in (old, new))
            if is_below(here, self.lease):
                if current is None:
                    current = _Listed(self.edit, path, listed)
                self._leased(here, before, after, _Found(here, current, current.entries.get(name)))
            elif is_below(self.lease, here):
                self._above(here, before, after)
            elif not before.is_identical_to(after):
                raise MergeError(here, f"changed, but the lease is on {self.lease or '/'}; only that may change")

    def _whole_rows(self, path: str, names: Set[str] | None) -> Set[str]:
        """Merge together the entries that their rows hold wholly and no other writer changed; the names that are left.

        There may be very many. ``names``: those in the directory to consider, all of them if None.
        """
        # `_leased` asks three catalogs about each name, which takes minutes in a directory of 100,000 files. A row that
        # holds all of its entry can be compared as it is: three scans, and one statement to remove and one to add.
        old, new, here = (_rows(side, path) for side in (self.base, self.new, self.edit))
        names = old.keys() | new.keys() if names is None else names
        if not is_below(path, self.lease):
            return names
        left, gone, fresh = set(), [], []
        for name in sorted(names):
            was, wanted, there = old.get(name), new.get(name), here.get(name)
            if not (_is_whole(was) and _is_whole(wanted) and _is_whole(there)):
                left.add(name)
            elif wanted not in (was, there):
                if there != was:  # another writer was here: `_leased` decides, which knows what counts as the same
                    left.add(name)
                    continue
                if there is not None:
                    gone.append(self.edit.inside(path).entry(f"{path}/{name}", there[2:]))
                if wanted is not None:
                    fresh.append(wanted)
        if gone or fresh:
            self._require_directory(path)
            self.edit.remove_rows(path, gone)
            self._copy.files(path, fresh)
        return left

    def _names(self, path: str) -> Set[str] | None:
        """The names in a directory that may differ between the change and its base; None: compare all."""
        catalog, other = self.base.inside(path), self.new.inside(path)
        if catalog.path != other.path:
            return None
        if catalog.path not in self._changed:
            self._changed[catalog.path] = self.bases.names(catalog, other)
        names = self._changed[catalog.path]
        if names is None or (path and self.base.row(path) is None):  # what is new is known by its top
            return None
        return names.get(path, frozenset())

    def _above(self, path: str, old: _Found, new: _Found) -> None:
        if not (old.entry and new.entry and old.entry.is_directory and new.entry.is_directory):
            raise MergeError(path, f"is above the leased {self.lease} and must be a directory before and after")
        if not (old.entry.mountpoint and new.entry.mountpoint and _same_catalog(old.nested, new.nested)):
            self._directory(path)

    def _leased(self, path: str, old: _Found, new: _Found, here: _Found) -> None:
        if new.is_as(old) or new.is_as(here):
            if new.is_plain_directory:
                self._directory(path)
            return
        if not here.is_as(old):
            raise _changed(path)
        if old.is_plain_directory and new.is_plain_directory and new.entry is not None:
            self.edit.touch(path, new.entry)
            self._directory(path)
        elif old.entry is not None and new.entry is not None and old.entry.mountpoint and new.entry.mountpoint:
            self._hang(path)
        else:
            if old.entry is not None:
                self._remove(path, old)
            if new.entry is not None:
                self._require_directory(parent_of(path))
                self._add(path, new.entry)

    def _require_directory(self, path: str) -> None:
        above = self.edit.row(path)
        if above is None or not above.is_directory:
            raise _changed(path)
        if above.bind:
            raise MergeError(path, "is a bind mountpoint, which shows another catalog; nothing can be put into it")

    def _remove(self, path: str, old: _Found) -> None:
        if old.is_plain_directory:
            self._require_untouched(path)
        self.edit.remove(path)

    def _require_untouched(self, path: str) -> None:
        """A plain directory goes only with what the base knew in it: others may have put their work there."""
        rows, others = _rows(self.base, path), _rows(self.edit, path)
        names = {n for n in rows.keys() | others.keys() if rows.get(n) != others.get(n) or not _is_whole(rows.get(n))}
        base, current = (
            _Listed(side, path, names if len(names) <= _LOOKED_UP else None) for side in (self.base, self.edit)
        )
        for name in sorted(names):
            below = f"{path}/{name}"
            was, here = (_Found(below, side, side.entries.get(name)) for side in (base, current))
            if not here.is_as(was):
                raise _changed(below)
            if here.is_plain_directory:
                self._require_untouched(below)

    def _add(self, path: str, entry: Dirent) -> None:
        if (fault := name_fault(entry.name) or size_fault(entry.size)) is not None:
            raise MergeError(path, fault)
        if entry.mountpoint:
            self._hang(path)
            return
        if entry.is_directory and not entry.bind:
            for below, inner in self._copy.directory(path, entry):
                self._add(below, inner)
            return
        if entry.hardlink_group:
            entry = entry.changed(hardlink_group=self._copy.group(path, entry.hardlink_group))
        # A bind mountpoint shows what is elsewhere: nothing below it counts as its links.
        added = entry.changed(linkcount=2) if entry.is_directory else entry
        holder = self.new.holder(path)
        chunks = holder.chunks(path, entry) if entry.chunked else ()
        shows = holder.bind_at(path) if entry.bind else None
        if shows is not None:
            require_sound(self.base, path, shows.hash, bind=True)
        self.edit.add(path, added, chunks, shows=shows)

    def _hang(self, path: str) -> None:
        """Swap in the change's catalog. Attributes, size and counters are its own, not those that the change states."""
        reference = self.new.holder(path).nested_at(path)
        if reference is None:
            raise MergeError(path, "a mountpoint without a nested catalog")
        require_sound(self.base, path, reference.hash)
        mountable = self.new.catalogs.mountable(path, reference.hash)
        require_size(reference, mountable)
        self.edit.hang(NestedRef(path, reference.hash, mountable.size), mountable.root_entry, mountable.totals)


def _rows(side: Revision, path: str) -> dict[str, tuple[Any, ...]]:
    """The rows of a directory's entries, by name."""
    return {str(row[9]): row for row in side.inside(path).rows_in(path)}


def _is_whole(row: tuple[Any, ...] | None) -> bool:
    """Tell whether a row, as ``Catalog.rows_in`` gives it, holds all of its entry; so does None, for no entry."""
    if row is None:
        return True
    links, mode, flags = row[2], row[5], row[8]
    return links == 1 and type(mode) is type(flags) is int and not stat.S_ISDIR(mode & 0xFFFF) and not flags & _CHUNKED


def _changed(path: str) -> BaseChanged:
    return BaseChanged(path, "another publication changed it since; take its result as the base and try again")


def _same_catalog(reference: NestedRef | None, other: NestedRef | None) -> bool:
    return reference is not None and other is not None and reference.hash == other.hash


def _alike(entry: Dirent, other: Dirent) -> bool:
    """Equal but for what differs between catalogs (group numbers) and what others' work changes (directory links)."""
    if entry == other:
        return True
    if entry.is_directory and other.is_directory and not entry.mountpoint and not other.mountpoint:
        entry, other = entry.changed(linkcount=2), other.changed(linkcount=2)
    return entry.changed(hardlink_group=0) == other.changed(hardlink_group=0)
