"""Single changes that somebody asks for, outside of any night: publish a tree, take places away, move, link.

Each is one short lease on the place concerned; what takes long is done before. ``Plan``s say what would be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.catalog import AUTO_MARKER, MARKER, name_of, parent_of
from include.cvmfs.format.digests import DigestSet
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareProgress, prepare
from include.cvmfs.ingest.spool import SpecialBits
from include.cvmfs.revision.needed_objects import add_identities
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.view import ancestors, is_below
from include.cvmfs.revision.walk import Tree
from include.cvmfs.sources.source import TreeSource, checked_destination
from include.publishers.base import Published
from include.publishers.connect import Connections
from include.publishers.prepare_options import tree_options


@dataclass(frozen=True, slots=True)
class HandMade:
    """Outcome of a publication: what was prepared, which directories are new, and the revision unless in a dry run."""

    changeset: Changeset
    created: tuple[str, ...]
    published: Published | None


def publish_tree(
    connections: Connections,
    fqrn: str,
    path: str,
    source: TreeSource,
    *,
    holder: str,
    now: datetime,
    replaces: bool = False,
    tag: NewTag | None = None,
    special_bits: SpecialBits | None = None,
    dry_run: bool = False,
    progress: Callable[[PrepareProgress], None] | None = None,
) -> HandMade:
    """Prepare ``source``, reserve ``path`` and publish it there, parents made as needed.

    ``replaces=False`` refuses a place that holds anything. ``special_bits`` overrides the settings.
    What the place and its neighbours hold in the current revision is not sent again. Raises DestinationError,
    SourceError, PathBusy, and what preparing and committing raise.
    """
    path, settings = _ordinary(path), connections.site.repository(fqrn)
    store = connections.repository_store(fqrn)
    seen = look(store)
    head = connections.head(fqrn)
    missing = _missing(head, path)
    if not missing:
        _require_room(head, path, replaces=replaces)
    packing = connections.packing(fqrn, head)
    if packing is not None:
        if special_bits is not None:
            packing = replace(packing, options=replace(packing.options, special_bits=special_bits))
        changeset = packing.pack(
            source,
            destination=path,
            now=now,
            base=Base(head.manifest.root, head.manifest.revision, seen.completed),
            progress=progress,
            dry_run=dry_run,
        )
        return _handed_over(connections, changeset, missing, holder, now, replaces, tag, dry_run=dry_run)
    known = DigestSet()
    for neighbour in _neighbours(head, path):
        add_identities(head, neighbour, known)
    if seen.running_list is not None:
        for one in condemned_among(store, seen.running_list, known):
            known.discard(one)
    options = tree_options(settings.prepare, head)
    changeset = prepare(
        source,
        store=store,
        fqrn=fqrn,
        destination=path,
        now=now,
        options=replace(
            options,
            special_bits=options.special_bits if special_bits is None else special_bits,
            connections=connections.site.store(settings.store).connections,
        ),
        known=known,
        base=Base(head.manifest.root, head.manifest.revision, seen.completed),
        progress=progress,
        dry_run=dry_run,
    )
    return _handed_over(connections, changeset, missing, holder, now, replaces, tag, dry_run=dry_run)


def _handed_over(
    connections: Connections,
    changeset: Changeset,
    missing: Sequence[str],
    holder: str,
    now: datetime,
    replaces: bool,
    tag: NewTag | None,
    *,
    dry_run: bool,
) -> HandMade:
    """Reserve the place of what was prepared, and publish it there."""
    if dry_run:
        return HandMade(changeset, tuple(missing), None)
    publisher = connections.publisher(changeset.repository)
    created = publisher.reserve([changeset.destination], nested=[], holder=holder, now=now).created
    published = publisher.publish(changeset, holder=holder, now=now, replace=replaces, tag=tag)
    return HandMade(changeset, created, published)


def common_ancestor(paths: Sequence[str]) -> str:
    """The deepest directory that has all of these places in it or below; ``""`` is the root."""
    top = parent_of(paths[0])
    while top and not all(is_below(path, top) and path != top for path in paths):
        top = parent_of(top)
    return top


@dataclass(frozen=True, slots=True)
class HandChange:
    """A change that can be looked at before it is made: what it does, and where its lease is (``""``: everywhere)."""

    lease: str
    apply: Callable[[Edit], None]

    def rehearse(self, connections: Connections, fqrn: str) -> int:
        """Do it to the current revision and forget it; how many catalogs it rewrites. Raises what it raises."""
        head = connections.head(fqrn)
        edit = Edit(head.catalogs, head.manifest.root)
        self.apply(edit)
        return len(edit.finish(head.manifest.timestamp).catalogs) if edit.changed else 0

    def commit(
        self, connections: Connections, fqrn: str, *, holder: str, now: datetime, tag: NewTag | None = None
    ) -> Published:
        """Make it. Raises DestinationError, PathBusy, and what a commit raises."""
        return connections.publisher(fqrn).change(self.lease, self.apply, holder=holder, now=now, tag=tag)


def removal(paths: Sequence[str]) -> HandChange:
    """Take away files, directories and nested catalogs in one revision.

    Raises DestinationError for a path that is no place, or lies within another of the paths.
    """
    places = [_ordinary(path) for path in paths]
    for place in places:
        if any(place != other and is_below(place, other) for other in places) or places.count(place) > 1:
            raise DestinationError(place, "is named twice, or lies within another of these; name it once")

    def apply(edit: Edit) -> None:
        for place in places:
            edit.remove(place)

    return HandChange(places[0] if len(places) == 1 else common_ancestor(places), apply)


def renaming(source: str, target: str) -> HandChange:
    """Let a subtree stand at another place; the lease is on the nearest directory above both. No data is moved."""
    old, new = _ordinary(source), _ordinary(target)
    return HandChange(common_ancestor([old, new]), lambda edit: edit.move(old, new))


def linking(path: str, target: str, *, now: datetime, owner: tuple[int, int] = (0, 0)) -> HandChange:
    """Let a symlink at ``path`` lead to ``target``, in the place of another symlink or of nothing."""
    place = _ordinary(path)
    if not target or "\0" in target:
        raise DestinationError(place, "a link leads somewhere: give a target that is not empty and has no NUL")

    def apply(edit: Edit) -> None:
        edit.symlink(place, target, now=int(now.timestamp()), owner=owner)

    return HandChange(place, apply)


@dataclass(frozen=True, slots=True)
class Contents:
    """What stands at a path, in figures: entries by kind (below it, itself included), bytes of its files."""

    entry: Dirent
    files: int
    directories: int
    others: int
    bytes: int


def contents_of(tree: Tree, path: str) -> Contents:
    """Counted from the counters of catalogs where a nested catalog begins, and entry by entry above. Raises
    DestinationError for what is not there."""
    entry = tree.lookup(path)
    if entry is None:
        raise DestinationError(path, "nothing is there")
    files = directories = others = size = 0
    pending = [(path, entry)]
    while pending:
        here, one = pending.pop()
        if one.mountpoint:
            total = tree.catalog_at(here).statistics.total
            files, directories = files + total.regular, directories + total.dir - total.nested
            others, size = others + total.symlink + total.special, size + total.file_size
        elif one.is_directory:
            directories += 1
            pending += [(f"{here}/{child.name}", child) for child in tree.listing(here)]
        else:
            files, others = files + one.is_regular, others + (not one.is_regular)
            size += one.size if one.is_regular else 0
    return Contents(entry, files, directories, others, size)


def _ordinary(path: str) -> str:
    """A destination that is no marker of a catalog: those come and go with their catalogs."""
    place = checked_destination(path.rstrip("/") or "/")
    if name_of(place) in (MARKER, AUTO_MARKER):
        raise DestinationError(place, "is the marker of a nested catalog; change the directory that it stands in")
    return place


def _missing(head: Repository, path: str) -> tuple[str, ...]:
    return tuple(above for above in ancestors(path) if head.lookup(above) is None)


def _require_room(head: Repository, path: str, *, replaces: bool) -> None:
    """Say before a tree is read what would be said when it is published."""
    entry = head.entry(path)
    if not entry.mountpoint:
        kind = "directory that is no nested catalog" if entry.is_directory else "file"
        raise DestinationError(path, f"a {kind} stands there; remove it first, or choose another place")
    total = head.catalog_at(path).statistics.total
    if not replaces and total.entries > 2:
        raise DestinationError(path, "holds something already; say --replace to put this in its place")


def _neighbours(head: Repository, path: str) -> list[str]:
    """The place itself and the one beside it that was written last: what is new is mostly like what is there."""
    if head.lookup(path) is not None:
        return [path]
    above = parent_of(path)
    if head.lookup(above) is None:
        return []
    beside = [entry for entry in head.listing(above) if entry.mountpoint]
    newest = max(beside, key=lambda entry: entry.mtime, default=None)
    return [f"{above}/{newest.name}"] if newest else []
