"""Changes of a repository: trees prepared for a destination, and single changes by hand, outside of any night.

A tree is packed for a node, or stored without what is there. A single change is a publication, a removal, a move, a
link, a file or a tag; each is one short lease on the place concerned, and what takes long is done before. ``Plan``s say
what would be done.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import Look, look
from include.cvmfs.errors import DestinationError, ObjectError, TagError
from include.cvmfs.format.catalog import AUTO_MARKER, MARKER
from include.cvmfs.format.database import check_tag_name
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import DigestSet, ObjectHash, hash_bytes, hash_of_key, identity
from include.cvmfs.format.objects import compress
from include.cvmfs.format.paths import ancestors, common_top, is_below, name_of, parent_of
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareProgress, prepare
from include.cvmfs.ingest.upload import JournaledStore, UploadJournal
from include.cvmfs.revision.needed_objects import known_objects
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.dirtab import NAME, Dirtab
from include.cvmfs.sources.source import SourceLimits, TreeSource, checked_destination
from include.errors import NightshiftError, is_retryable
from include.publishers.base import Published, tree_options
from include.publishers.required_objects import is_free, is_reserved, is_tree, missing_directories, occupied
from include.settings.prepare import Prepare
from include.site.site import Site

CONTENT_INDEX = "content-index.db"
SENT = "sent"
"""Below the site's ``var``; caches, shared by all preparations of a machine."""


@dataclass(frozen=True, slots=True)
class TreeToPrepare:
    """A tree, where it goes, and what of it need not be sent.

    ``known_from``: paths whose objects the current revision has; ``damaged``: keys of objects that are sent again.
    ``prepare`` takes the place of the repository's settings.
    """

    destination: str
    source: TreeSource
    now: datetime
    known_from: Iterable[str] = ()
    damaged: Collection[str] = ()
    limits: SourceLimits = field(default_factory=SourceLimits)
    prepare: Prepare | None = None
    progress: Callable[[PrepareProgress], None] | None = None
    dry_run: bool = False


def prepare_for(
    site: Site, head: Repository, seen: Look, tree: TreeToPrepare, journal: UploadJournal | None = None
) -> Changeset:
    """Make a tree's changeset. ``seen`` was read before ``head``; ``journal`` has what an interrupted try sent.

    What the current revision or the journal names is not sent again, unless it is condemned or damaged. Raises what
    preparing raises.
    """
    base = Base(head.manifest.root, head.manifest.revision, seen.moment)
    packing = site.packing(head.fqrn, head)
    if packing is not None:
        if tree.prepare is not None:
            packing = replace(packing, options=tree_options(tree.prepare, head))
        return packing.pack(
            tree.source, destination=tree.destination, now=tree.now, base=base, limits=tree.limits,
            progress=tree.progress, dry_run=tree.dry_run,
        )  # fmt: skip
    store = site.repository_store(head.fqrn)
    settings = site.settings.repository(head.fqrn)
    known = known_objects(head.revision, tree.known_from)
    if journal is not None:
        for sent in journal.known:
            known.add(sent)
    leave_condemned(known, seen, head.revision)
    for key in tree.damaged:
        known.discard(identity(hash_of_key(key)))
    options = replace(
        tree_options(tree.prepare or settings.prepare, head),
        connections=site.settings.store(settings.store).connections,
        limits=tree.limits,
        index=site.settings.paths.var / CONTENT_INDEX,
    )
    return prepare(
        tree.source, store=store if journal is None else JournaledStore(store, journal), fqrn=head.fqrn,
        destination=tree.destination, now=tree.now, options=options, known=known, base=base, progress=tree.progress,
        dry_run=tree.dry_run,
    )  # fmt: skip


def journal_of(site: Site, fqrn: str, seen: Look, tree: TreeToPrepare, *origin: str | None) -> UploadJournal | None:
    """The journal of a tree from ``origin``, also of an earlier try; None where nothing is sent over a network."""
    store = site.repository_store(fqrn)
    if tree.dry_run or store.is_local or site.settings.repository(fqrn).server is not None:
        return None  # where the store is files, to look is to write
    about = (store.url, tree.destination, *origin)
    return UploadJournal(site.settings.paths.var / SENT, about=about, generation=seen.completed, now=tree.now)


def leave_condemned(known: DigestSet, look: Look, revision: Revision) -> None:
    """Take out what a collection is about to delete."""
    if look.running_list is not None:
        for name in condemned_among(revision.catalogs.store, look.running_list, known):
            known.discard(name)


class WantedPlace(Enum):
    """Condition that a builder waits for."""

    FREE = "free"
    """The path does not exist, or is reserved."""
    RESERVED = "reserved"
    """The path is reserved: publishing to it is one short commit."""


@dataclass(frozen=True, slots=True)
class SeenPlace:
    """Look at a place: whether it is as wanted, why, and in which revision."""

    path: str
    ready: bool
    reason: str
    revision: int


def look_at(site: Site, fqrn: str, path: str, wanted: WantedPlace, *, replaces: bool = False) -> SeenPlace:
    """Check whether a builder may count on a place; nothing is taken, and nothing written.

    ``replaces``: what is at the path is going to be replaced, so that any tree is as good as a reservation. Raises
    DestinationError, which waiting does not resolve: for a tree at the path, a file in the way, or an invalid path.
    """
    path = checked_destination(path.rstrip("/") or "/")
    with site.gateway(fqrn) as client:
        holder = client.holder(fqrn, path)
    head = site.head(fqrn)
    revision, view = head.manifest.revision, head.revision
    missing = missing_directories(view, [path])
    if not missing and not replaces and not is_reserved(view, path):
        raise occupied(path)
    if holder is not None:
        until = f"{holder.expires:%Y-%m-%d %H:%M:%S} UTC"
        why = f"{holder.full_path} is leased by {holder.hostname!r} with key {holder.key_id} until {until} at most"
        return SeenPlace(path, False, why, revision)
    if not missing:
        return SeenPlace(path, True, f"revision {revision} has it", revision)
    if wanted is WantedPlace.FREE:
        return SeenPlace(path, True, f"does not exist in revision {revision}", revision)
    return SeenPlace(path, False, f"{missing[0]} is not there in revision {revision}: it is not reserved", revision)


@dataclass(frozen=True, slots=True)
class TreePublication:
    """Outcome of a publication: what was prepared, which directories are new, and the revision unless in a dry run."""

    changeset: Changeset
    created: tuple[str, ...]
    published: Published | None

    def to_json(self) -> dict[str, Any]:
        """Return what commands and tasks report: figures, and what was published unless in a dry run."""
        changeset = self.changeset
        facts: dict[str, Any] = {
            "dry_run": self.published is None, "path": changeset.destination, "catalog": str(changeset.root),
            "files": changeset.files, "bytes": changeset.bytes, "catalogs": changeset.catalogs,
            "objects_new": changeset.objects_new, "objects_reused": changeset.objects_reused,
            "bytes_uploaded": changeset.bytes_uploaded, "created": list(self.created), "notes": list(changeset.notes),
        }  # fmt: skip
        return facts if self.published is None else facts | self.published.to_json()


def publish_tree(
    site: Site, fqrn: str, tree: TreeToPrepare, *, holder: str, replaces: bool = False, tag: NewTag | None = None
) -> TreePublication:
    """Prepare a tree, reserve its destination and publish it there, parents made as needed.

    ``replaces=False`` refuses a place that holds anything. What the place and its neighbours hold in the current
    revision, and what an interrupted try has sent, is not sent again. Raises DestinationError, TagError, SourceError,
    PathBusy, and what preparing and committing raise.
    """
    head, path = site.head(fqrn), _ordinary(tree.destination)
    if not replaces:
        _require_empty(head, path)
    require_tag(head, path, tag)
    with prepared_tree(site, fqrn, tree) as changeset:
        if tree.dry_run:
            return would_publish(site, changeset, replaces=replaces)
        return publish_changeset(site, changeset, holder=holder, now=tree.now, replaces=replaces, tag=tag)


@contextmanager
def prepared_tree(site: Site, fqrn: str, tree: TreeToPrepare) -> Iterator[Changeset]:
    """Prepare a tree without a lease. What was sent is known to the next try unless the block ends in order.

    Raises DestinationError for a place where no tree can be published, SourceError, and what preparing raises.
    """
    path = _ordinary(tree.destination)
    before = look(site.repository_store(fqrn))
    head = site.head(fqrn)
    if not _missing(head, path):
        _require_mountpoint(head, path)
    tree = replace(tree, destination=path, known_from=_neighbours(head, path))
    journal = journal_of(site, fqrn, before, tree, tree.source.name)
    with journal or nullcontext():
        yield prepare_for(site, head, before, tree, journal)
        if journal is not None:
            journal.remove()


def would_publish(site: Site, changeset: Changeset, *, replaces: bool) -> TreePublication:
    """Return what publishing a changeset of a dry run would create. Raises DestinationError where it would be
    refused."""
    head, path = site.head(changeset.repository), changeset.destination
    missing = _missing(head, path)
    if not (replaces or missing or is_free(head.revision, path, changeset.root)):
        raise occupied(path)
    return TreePublication(changeset, missing, None)


def publish_changeset(
    site: Site,
    changeset: Changeset,
    *,
    holder: str,
    now: datetime,
    replaces: bool = False,
    tag: NewTag | None = None,
    on_lease: Callable[[Callable[[], object]], None] | None = None,
) -> TreePublication:
    """Reserve the destination of a prepared tree and publish it there, each under a short lease.

    A destination that holds this very tree is left as it is. Where publishing fails for good, the directories that were
    made for it go again. Raises DestinationError, TagError, PathBusy, and what a commit raises.
    """
    path, publisher = changeset.destination, site.publisher(changeset.repository)
    require_tag(site.head(changeset.repository), path, tag, changeset.root)
    created = publisher.reserve([path], nested=[], holder=holder, now=now).created
    try:
        published = publisher.publish(changeset, holder=holder, now=now, replace=replaces, tag=tag, on_lease=on_lease)
    except NightshiftError as error:
        if created and not is_retryable(error, otherwise=False):
            with suppress(NightshiftError):
                publisher.release([path], floor=None, holder=holder, now=now, created=created)
        raise
    return TreePublication(changeset, created, published)


def require_tag(head: Repository, path: str, tag: NewTag | None, root: ObjectHash | None = None) -> None:
    """Raise TagError for a tag that is taken, before anything is sent for it.

    It may name a revision that has at ``path`` what the current one has, as an earlier try of the same publication left
    it; with ``root`` this must be that very tree.
    """
    if tag is None:
        return
    taken = next((other for other in head.tags() if other.name == check_tag_name(tag.name)), None)
    if taken is None:
        return
    place = _ordinary(path)
    tagged, current = head.at(taken.hash).nested_at(place), head.revision.nested_at(place)
    if tagged is None or current is None or tagged.hash != current.hash or not is_tree(current, root or current.hash):
        problem = f"names revision {taken.revision} of {head.manifest.fqrn} already"
        raise TagError(tag.name, f"{problem}; choose another name, or publish without a tag")


def tag_revision(site: Site, fqrn: str, tag: NewTag, *, lease: str = "", holder: str, now: datetime) -> Published:
    """Name the content of the newest revision; the tag is carried by a revision of its own, as every commit's is.

    Works wherever a gateway can be reached, without the signing key. ``lease``: the path that is leased meanwhile. A
    tag of this name and description is left as it is. Raises TagError for another one of that name, PathBusy,
    NotSupported, and what a commit raises.
    """
    head = site.head(fqrn)
    taken = next((other for other in head.tags() if other.name == check_tag_name(tag.name)), None)
    if taken is not None:
        if taken.description != tag.description:
            raise TagError(tag.name, f"names revision {taken.revision} of {fqrn} already; choose another name")
        return Published(lease, taken.revision, taken.revision, taken.hash, None, 0.0, unchanged=True)
    path = checked_destination(lease) if lease else ""
    return SingleChange(path, _nothing).commit(site, fqrn, holder=holder, now=now, tag=tag)


@dataclass(frozen=True, slots=True)
class SingleChange:
    """A change that can be shown before it is made: what it does, and where its lease is (``""``: everywhere)."""

    lease: str
    apply: Callable[[Edit], None]

    def rehearse(self, site: Site, fqrn: str) -> int:
        """Do it to the current revision and forget it; how many catalogs it rewrites. Raises what it raises."""
        head = site.head(fqrn)
        edit = Edit(head.catalogs, head.manifest.root)
        self.apply(edit)
        return len(edit.finish(head.manifest.timestamp).catalogs) if edit.changed else 0

    def commit(self, site: Site, fqrn: str, *, holder: str, now: datetime, tag: NewTag | None = None) -> Published:
        """Make it. Raises DestinationError, PathBusy, and what a commit raises."""
        return site.publisher(fqrn).change(self.lease, self.apply, holder=holder, now=now, tag=tag)


def removal(paths: Sequence[str]) -> SingleChange:
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

    return SingleChange(common_top(places), apply)


def renaming(source: str, target: str) -> SingleChange:
    """Let a subtree stand at another place; the lease is on the nearest directory above both. No data is moved."""
    old, new = _ordinary(source), _ordinary(target)
    return SingleChange(common_top([old, new]), lambda edit: edit.move(old, new))


def linking(path: str, target: str, *, now: datetime, owner: tuple[int, int] = (0, 0)) -> SingleChange:
    """Let a symlink at ``path`` lead to ``target``, in the place of another symlink or of nothing."""
    place = _ordinary(path)
    if not target or "\0" in target:
        raise DestinationError(place, "a link leads somewhere: give a target that is not empty and has no NUL")

    def apply(edit: Edit) -> None:
        edit.symlink(place, target, now=int(now.timestamp()), owner=owner)

    return SingleChange(place, apply)


DIRTAB = f"/{NAME}"


def cutting(rules: bytes, name: str, *, now: datetime) -> SingleChange:
    """Let the rules that cut trees into catalogs be these; the lease is on their file alone. ``name`` is for messages.

    Raises FormatError for rules that cannot be read.
    """
    Dirtab.parse(rules, name)

    def apply(edit: Edit) -> None:
        _write(edit, DIRTAB, rules, int(now.timestamp()))

    return SingleChange(DIRTAB, apply)


def matching_directories(tree: Revision, rules: Dirtab) -> Iterator[tuple[str, Dirent]]:
    """Each directory that the rules let be a nested catalog, with its entry. Only directories above such are read."""
    pending = [""]
    while pending:
        above = pending.pop()
        for entry in tree.inside(above).listing(above):
            path = f"{above}/{entry.name}"
            if not entry.is_directory or entry.bind:
                continue
            if rules.matches(path):
                yield path, entry
            if rules.leads_below(path):
                pending.append(path)


@dataclass(frozen=True, slots=True)
class Contents:
    """Figures of a path: entries by kind (below it, itself included), bytes of its files."""

    entry: Dirent
    files: int
    directories: int
    others: int
    bytes: int


def contents_of(tree: Revision, path: str) -> Contents:
    """Counted from the counters of catalogs where a nested catalog begins, and entry by entry above. Raises
    DestinationError for what is not there."""
    entry = tree.lookup(path)
    if entry is None:
        raise DestinationError(path, "nothing is there")
    files = directories = others = size = 0
    pending = [(path, entry)]
    while pending:
        here, current = pending.pop()
        if current.mountpoint:
            total = tree.catalog_at(here).statistics.total
            files, directories = files + total.regular, directories + total.dir - total.nested
            others, size = others + total.symlink + total.special, size + total.file_size
        elif current.is_directory:
            directories += 1
            pending += [(f"{here}/{child.name}", child) for child in tree.listing(here)]
        else:
            files, others = files + current.is_regular, others + (not current.is_regular)
            size += current.size if current.is_regular else 0
    return Contents(entry, files, directories, others, size)


def _nothing(edit: Edit) -> None:
    """A change that only carries a tag."""


def _write(edit: Edit, path: str, content: bytes, now: int) -> None:
    """Let a small file have this content, in the place of another file, a link or nothing. ``now``: Unix s."""
    entry = edit.row(path)
    if entry is not None:
        if entry.is_directory:
            raise DestinationError(path, "a directory exists there and is not replaced by a file; take it away first")
        if _has_content(edit, path, entry, content):
            return
        edit.remove(path)
    packed = compress(content)
    name = hash_bytes(packed, edit.root_hash.algorithm)
    edit.bring([(name.key, packed)])
    file = Dirent("", stat.S_IFREG | 0o644, size=len(content), mtime=now, hash=name, algorithm=name.algorithm)
    edit.add(path, file)


def _has_content(tree: Revision, path: str, entry: Dirent, content: bytes) -> bool:
    if not entry.is_regular or entry.external or entry.size != len(content):
        return False
    try:
        return tree.read(path) == content
    except ObjectError:
        return False  # lost: it is stored again


def _ordinary(path: str) -> str:
    """A destination that is no marker of a catalog: those come and go with their catalogs."""
    place = checked_destination(path.rstrip("/") or "/")
    if name_of(place) in (MARKER, AUTO_MARKER):
        raise DestinationError(place, "is the marker of a nested catalog; change the directory that it is in")
    return place


def _missing(head: Repository, path: str) -> tuple[str, ...]:
    """The path and directories above it that are absent. Raises DestinationError where something else is above it."""
    places = list(ancestors(path))
    for number, place in enumerate(places):
        entry = head.revision.lookup(place)
        if entry is None:
            return tuple(places[number:])
        if place != path and not entry.is_directory:
            raise DestinationError(path, f"{place} is a {entry.kind}; remove it or choose another destination")
    return ()


def _require_mountpoint(head: Repository, path: str) -> None:
    """Say before a tree is read what would be said when it is published."""
    entry = head.revision.entry(path)
    if not entry.mountpoint:
        kind = "directory that is no nested catalog" if entry.is_directory else entry.kind
        raise DestinationError(path, f"a {kind} is there; remove it first, or choose another path")


def _require_empty(head: Repository, path: str) -> None:
    if _missing(head, path):
        return
    _require_mountpoint(head, path)
    if head.revision.catalog_at(path).statistics.total.entries > 2:
        raise DestinationError(path, "holds something already; add --replace to replace it")


def _neighbours(head: Repository, path: str) -> list[str]:
    """The place itself and the one beside it that was written last: what is new is mostly like what is there."""
    if head.revision.lookup(path) is not None:
        return [path]
    above = parent_of(path)
    if head.revision.lookup(above) is None:
        return []
    beside = [entry for entry in head.revision.listing(above) if entry.mountpoint]
    newest = max(beside, key=lambda entry: entry.mtime, default=None)
    return [f"{above}/{newest.name}"] if newest else []
