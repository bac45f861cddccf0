"""The kinds of gateway that a native publisher commits through: Nightshift's own, and the stock one with merged
changes.

Leases are the same through both. What differs is how a commit is made and its outcome found out, and what may be asked
at all.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from include.cvmfs.commit.commit import NewTag, load_history
from include.cvmfs.commit.merge import merge
from include.cvmfs.coordination.generation import Look, require_unmoved
from include.cvmfs.errors import BaseChanged, GenerationMoved, MergeError, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.paths import ancestors, is_below, parent_of
from include.cvmfs.format.schema import Counts
from include.cvmfs.revision.revision import Revision
from include.gateway import errors
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import Lease
from include.publishers.capabilities import Loss, Operation, PublishRoute, require
from include.publishers.errors import NotSupported, WorkReverted
from include.storage.store import Store


@dataclass(frozen=True, slots=True)
class LossyEntry:
    """An entry that would not arrive as it is; ``breaks``: the receiver dies of it, whatever is allowed."""

    path: str
    operation: Operation
    breaks: bool = False


def concerns(old: Revision, new: Revision, lease: str) -> Iterator[LossyEntry]:
    """Yield what gets lost of the change ``old`` -> ``new`` inside the lease. Catalogs that are swapped are not
    walked."""
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
    """Tell whether a revision holds at the leased path what a change wanted there.

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
    """Return what a commit did outside of its lease, in words; nothing if it kept to it.

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
    """Return what the receiver compares of an entry: neither its owner nor the values of its extended attributes."""
    return (
        entry.linkcount, entry.size, entry.mode, entry.mtime, entry.mtime_ns, entry.symlink, entry.hash,
        bool(entry.xattr), entry.mountpoint, entry.chunked, entry.external, entry.bind, entry.hidden, entry.direct_io,
    )  # fmt: skip


log = logging.getLogger(__name__)

_LASTING = frozenset({errors.TagRefused.code, errors.REFLOG_MISSING.code})


@dataclass(frozen=True, slots=True)
class WriterSide:
    """A repository as its writers see it, without any cache of readers in between.

    ``read_manifest`` returns the current manifest, its signature verified.
    """

    fqrn: str
    store: Store
    catalogs: CatalogCache
    read_manifest: Callable[[], Manifest]

    def view(self, root: ObjectHash) -> Revision:
        return Revision(self.catalogs, root, sizes=True)

    def view_at(self, manifest: Manifest, revision: int) -> Revision:
        """The revision of that number; if it cannot be reached from the manifest, the oldest newer one that can."""
        view = self.view(manifest.root)
        while (root := view.root).revision > revision and root.previous_revision:
            view = self.view(root.previous_revision)
        return view


@dataclass(frozen=True, slots=True)
class RepositoryGateway(ABC):
    """A gateway in front of one repository.

    ``tries``: how often a change may be tried, each time under a new lease. ``leases_everything``: whether a lease may
    be on the whole repository.
    """

    repository: WriterSide
    client: GatewayClient
    way: ClassVar[PublishRoute]
    tries: ClassVar[int] = 1
    leases_everything: ClassVar[bool] = True

    @abstractmethod
    def commit(self, lease: Lease, base: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        """Publish a change whose objects and catalogs are stored; the number of the revision that holds it.

        ``base``: the manifest that the change was derived from; ``new``: its new root catalog; ``seen``: the
        collections when the change was judged. If the reply is lost, the manifest is read to find out whether the
        change was published. Raises GatewayError.
        """


def a_new_lease_may_help(error: errors.GatewayError) -> bool:
    """Tell whether to drop the lease, to look, and to derive the change again: it may be published, or be taken
    then."""
    return (
        isinstance(error, errors.LeaseLost | errors.CommitUnclear | errors.CommitFailed) and error.code not in _LASTING
    )


@dataclass(frozen=True, slots=True)
class NightshiftGateway(RepositoryGateway):
    """Our own service: it merges, judges the base of a commit, and repeats a commit that failed."""

    way: ClassVar[PublishRoute] = PublishRoute.NATIVE_OURS

    def commit(self, lease: Lease, base: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        try:
            return self.client.commit(lease, base.root, new, tag=tag, generation=seen.token)
        except errors.CommitUnclear:
            after = self.repository.read_manifest()
            if self._holds(after, base.root, new, lease.path):
                return after.revision
            raise

    def _holds(self, after: Manifest, base: ObjectHash, new: ObjectHash, lease_path: str) -> bool:
        """Tell whether nothing of a change is left to be done to a revision."""
        try:
            merged = merge(self.repository.catalogs, base=base, new=new, current=after.root, lease_path=lease_path)
        except (BaseChanged, MergeError):
            return False
        return not merged.changed


@dataclass(frozen=True, slots=True)
class StockGateway(RepositoryGateway):
    """The gateway of CernVM-FS itself: it merges without looking at the base, and repeats no commit that failed.

    What is done about that (docs/formats.md, merge of a stock gateway): a change whose commit failed is derived again
    under a new lease; what became of a commit is found out by reading; what the receiver would lose is refused before
    it is sent; and after a commit it is verified that nothing of others was reverted. ``allow_lossy``: what may be lost
    without being refused.
    """

    allow_lossy: frozenset[Loss] = frozenset()
    way: ClassVar[PublishRoute] = PublishRoute.NATIVE_STOCK
    tries: ClassVar[int] = 5
    leases_everything: ClassVar[bool] = False  # the path of such a lease would end in a slash

    def commit(self, lease: Lease, base: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        """Publish. Raises NotSupported and Lossy for what the receiver would break or lose, and WorkReverted."""
        before, wanted = self.repository.view(base.root), self.repository.view(new)
        exact = self._require_kept(before, wanted, lease.path)
        self._require_still_possible(lease, base, tag, seen)
        try:
            revision = self.client.commit(lease, base.root, new, tag=tag)
        except errors.GatewayError as error:
            after = self.repository.read_manifest()
            if after.root == base.root or not self._arrived(after, wanted, lease.path, tag):
                raise
            log.warning("%s: found in revision %d although: %s", lease.full_path, after.revision, error)
            revision = self._revision_that_holds(after, wanted, lease.path, base.revision)
        self._require_others_kept(before, wanted, revision, lease.path, exact=exact)
        return revision

    # -- private

    def _require_kept(self, base: Revision, wanted: Revision, lease_path: str) -> bool:
        """Refuse what the receiver would lose or die of; whether all of the change arrives."""
        exact, fqrn = True, self.repository.fqrn
        for entry in concerns(base, wanted, lease_path):
            if entry.breaks:
                cure = "publish its whole tree again, or take the whole tree away"
                raise NotSupported(
                    fqrn, f"{entry.path}: a stock receiver breaks at changed hard links; {cure}", path=entry.path
                )
            require(self.way, entry.operation, fqrn=fqrn, path=entry.path, allow_lossy=self.allow_lossy)
            exact = False
        return exact

    def _require_still_possible(self, lease: Lease, base: Manifest, tag: NewTag | None, seen: Look) -> None:
        """Refuse what our own service would refuse in the commit itself. Raises TagRefused, CollectionMoved."""
        fqrn = self.repository.fqrn
        if tag is not None and self._has_tag(base, tag):
            raise errors.TagRefused(
                f"commit on {lease.full_path}: the tag {tag.name!r} is there already; {errors.TagRefused.hint}",
                repository=fqrn, path=lease.path, key_id=lease.key_id,
            )  # fmt: skip
        try:
            # it would not look: this is as close to the switch as we come
            require_unmoved(self.repository.store, seen.token, fqrn=fqrn)
        except GenerationMoved as moved:
            raise errors.CollectionMoved(
                f"commit on {lease.full_path}: {moved}; {errors.CollectionMoved.hint}", repository=fqrn, path=lease.path
            ) from None

    def _has_tag(self, manifest: Manifest, tag: NewTag) -> bool:
        return load_history(self.repository.store, manifest).tag(tag.name) is not None

    def _arrived(self, after: Manifest, wanted: Revision, lease_path: str, tag: NewTag | None) -> bool:
        named = tag is None or self._has_tag(after, tag)
        return named and stands(wanted, self.repository.view(after.root), lease_path)

    def _revision_that_holds(self, after: Manifest, wanted: Revision, lease_path: str, older_than: int) -> int:
        """The first revision after ours was derived that contains the change."""
        view = self.repository.view(after.root)
        while (previous := view.root.previous_revision) is not None:
            earlier = self.repository.view(previous)
            if earlier.root.revision <= older_than or not stands(wanted, earlier, lease_path):
                break
            view = earlier
        return view.root.revision

    def _require_others_kept(
        self, base: Revision, wanted: Revision, revision: int, lease_path: str, *, exact: bool
    ) -> None:
        """Raises WorkReverted if our commit changed anything outside of its lease."""
        try:
            after = self.repository.view_at(self.repository.read_manifest(), revision)
            previous = after.root.previous_revision
            if after.root.revision != revision or previous is None:
                log.warning("revision %d cannot be compared with the one before: its chain is broken", revision)
                return
            before = self.repository.view(previous)
            found = reverted(base=base, new=wanted, before=before, after=after, lease=lease_path, exact=exact)
        except ObjectMissing as missing:
            log.warning("revision %d cannot be compared with the one before: %s", revision, missing)
            return
        if found:
            more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
            raise WorkReverted(
                self.repository.fqrn,
                f"revision {revision}, made of our commit on {lease_path}, changed what was not leased: "
                f"{'; '.join(found[:3])}{more}. Compare it with the revision before (nightshift repo diff), and "
                "publish again what was lost; look for another writer without a lease",
                path=lease_path,
                revision=revision,
            )
