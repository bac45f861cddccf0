"""Publication without payload: objects and catalogs go straight to the store, the gateway only commits.

Two steps keep leases short whatever the size of a tree (docs/decisions, reserve then swap): ``reserve`` creates a
build's skeleton with an empty nested catalog at every destination, and ``publish`` swaps exactly that catalog. Both
read the manifest under the lease and derive the new root from what it says.
"""

from __future__ import annotations

import dataclasses
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from include.cvmfs.commit.commit import NewTag, load_history
from include.cvmfs.commit.edit import Edit, NewRoot
from include.cvmfs.commit.merge import merge
from include.cvmfs.commit.metadata_objects import store_all
from include.cvmfs.coordination.generation import Look, look
from include.cvmfs.errors import (
    LAYOUT_CHANGED,
    BaseChanged,
    CatalogError,
    FormatError,
    MergeError,
    NotReserved,
    ObjectDamaged,
    ObjectMissing,
    ObjectsLost,
    RepositoryError,
)
from include.cvmfs.format.catalog import Catalog, NestedRef, parent_of
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.digests import hash_of_key, identity
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.revision.view import View, is_below
from include.gateway.client.client import GatewayClient
from include.gateway.client.values import Lease
from include.gateway.errors import CollectionMoved, CommitUnclear
from include.publishers.base import Published, Released, Reserved
from include.publishers.destinations import is_free, is_reserved, is_tree, missing_directories, occupied
from include.publishers.required_objects import Clearance, require_spared
from include.publishers.unused_directories import topmost
from include.storage.store import Store

_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)
_JUDGEMENTS = 3


@dataclass
class _Clock:
    """Seconds per phase, in the order in which they were entered."""

    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - started


class NativePublisher:
    """Publishes to one repository. ``read_manifest`` returns the current manifest, its signature verified.

    ``catalog_entries``, ``root_entries``: what a catalog, and the root catalog, may grow to; 0 is no limit.
    """

    def __init__(
        self,
        fqrn: str,
        store: Store,
        gateway: GatewayClient,
        read_manifest: Callable[[], Manifest],
        *,
        catalog_entries: int = 0,
        root_entries: int = 0,
    ) -> None:
        self.fqrn = fqrn
        self._most = {"nested": catalog_entries, "root": root_entries}
        self._store = store
        self._gateway = gateway
        self._read_manifest = read_manifest
        self._catalogs = CatalogCache(store)

    def reserve(
        self,
        destinations: Sequence[str],
        *,
        nested: Sequence[str],
        holder: str,
        now: datetime,
        on_create: Callable[[Sequence[str]], None] | None = None,
    ) -> Reserved:
        """Create the destinations that are absent, as empty nested catalogs, and all directories above them.

        ``nested``: which of the directories above become nested catalogs too. ``on_create`` is told, under the lease,
        what is going to be created. One lease, one commit; none at all when everything is there. Raises PathBusy,
        DestinationError (a file in the way, or one destination inside another), and what a commit raises.
        """
        manifest = self._read_manifest()
        missing = missing_directories(View(self._catalogs, manifest.root), destinations)
        if not missing:
            return Reserved(manifest.revision, ())
        started = time.monotonic()
        with self._gateway.lease(self.fqrn, _common(missing), hostname=holder) as lease:
            seen, manifest = look(self._store), self._read_manifest()
            created = missing_directories(View(self._catalogs, manifest.root), destinations)
            if created and not all(is_below(path, lease.path) for path in created):
                raise BaseChanged(lease.path, "directories above it went away meanwhile; reserve again")
            if created and on_create:
                on_create(created)
            edit = Edit(self._catalogs, manifest.root)
            entry = _DIRECTORY.changed(mtime=int(now.timestamp()))
            for path in created:
                if path in destinations or path in nested:
                    edit.make_nested(path, entry)
                else:
                    edit.add(path, entry)
            revision = manifest.revision
            if created:
                revision = self._commit(lease, manifest, edit, now, None, _Clock(), seen)
        return Reserved(revision, tuple(created), time.monotonic() - started)

    def publish(
        self,
        changeset: Changeset,
        *,
        holder: str,
        now: datetime,
        replace: bool = True,
        tag: NewTag | None = None,
        on_lease: Callable[[Callable[[], object]], None] | None = None,
    ) -> Published:
        """Swap the destination's catalog for the prepared one, under a lease on the destination alone.

        ``replace=False`` refuses a destination that holds anything. ``on_lease`` is told how to give the lease back,
        for whoever must do so from outside. A destination that holds this very tree already is left as it is.
        Raises PathBusy, DestinationError (NotReserved where it was not reserved), BaseChanged (the destination is not
        what the change was derived from),
        PrepareAgain and CollectionRunning for a changeset whose objects are not all sure to be there (docs/decisions,
        collections), other CvmfsErrors for one that is damaged or of another repository, and what a commit raises.
        """
        for attempt in range(_JUDGEMENTS):
            try:
                return self._publish(changeset, holder, now, replace, tag, on_lease)
            except CollectionMoved:  # a collector was between our look and the switch: look again
                if attempt == _JUDGEMENTS - 1:
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _publish(
        self,
        changeset: Changeset,
        holder: str,
        now: datetime,
        replace: bool,
        tag: NewTag | None,
        on_lease: Callable[[Callable[[], object]], None] | None,
    ) -> Published:
        path, clock = changeset.destination, _Clock()
        clearance = Clearance(self._store, self._catalogs, changeset)
        with clock.phase("changeset"):
            catalog = self._stored(changeset)
            root_entry, totals = catalog.root_entry, catalog.statistics.total
            clearance.require_catalogs(catalog)
            clearance.fault(look(self._store), now)  # what takes long is done before the lease
        started = time.monotonic()
        with self._gateway.lease(self.fqrn, path, hostname=holder) as lease:
            if on_lease:
                on_lease(lambda: self._gateway.drop(lease))
            held = time.monotonic()
            clock.phases["lease"] = held - started
            with clock.phase("base"):
                seen, manifest = look(self._store), self._read_manifest()
                edit = Edit(self._catalogs, manifest.root)
                there = edit.nested_at(path)
            if is_tree(there, changeset.root) and (tag is None or self._tagged(manifest, tag, changeset)):
                self._gateway.drop(lease)
                return self._outcome(path, manifest, manifest, held, clock, unchanged=True)
            if (fault := clearance.fault(seen, now)) is not None:
                raise fault
            if catalog.layout is not edit.root.catalog.layout:
                raise LAYOUT_CHANGED(path, _other_layout(catalog.layout, edit.root.catalog.layout))
            with clock.phase("hang"):
                self._require_base(edit, there, changeset, replace=replace)
                edit.hang(NestedRef(path, changeset.root, changeset.root_size), root_entry, totals)
            revision = self._commit(lease, manifest, edit, now, tag, clock, seen)
            held_s = time.monotonic() - held
        with clock.phase("confirm"):
            after = self._confirmed(changeset, revision)
        return self._outcome(path, manifest, after, held, clock, held_s=held_s, nested=changeset.root)

    def remove(self, path: str, *, holder: str, now: datetime) -> Published:
        """Take away what stands at ``path``. Raises PathBusy, DestinationError, and what a commit raises."""
        clock = _Clock()
        with self._gateway.lease(self.fqrn, path, hostname=holder) as lease:
            held = time.monotonic()
            seen, manifest = look(self._store), self._read_manifest()
            edit = Edit(self._catalogs, manifest.root)
            edit.remove(path)
            self._commit(lease, manifest, edit, now, None, clock, seen)
            held_s = time.monotonic() - held
        return self._outcome(path, manifest, self._read_manifest(), held, clock, held_s=held_s)

    def change(
        self,
        lease_path: str,
        apply: Callable[[Edit], None],
        *,
        holder: str,
        now: datetime,
        tag: NewTag | None = None,
    ) -> Published:
        """Commit whatever ``apply`` does to an edit, all of it below ``lease_path``, as one revision.

        It is tried, and its catalogs are stored, before the lease is taken; under the lease it is done again only if
        somebody published meanwhile. A change that does nothing makes no revision unless it is to be tagged. Raises
        what ``apply`` raises, PathBusy, and what a commit raises.
        """
        clock = _Clock()
        with clock.phase("rehearsal"):
            manifest, new = self._rehearsed(apply, now)
        if new is None and tag is None:
            return self._outcome(lease_path, manifest, manifest, time.monotonic(), clock, unchanged=True)
        with self._gateway.lease(self.fqrn, lease_path, hostname=holder) as lease:
            held = time.monotonic()
            with clock.phase("base"):
                rehearsed, seen, manifest = manifest, look(self._store), self._read_manifest()
                if manifest.root != rehearsed.root:
                    manifest, new = self._rehearsed(apply, now)
                if new is not None:
                    fresh = [packed.hash for packed in new.catalogs] + [hash_of_key(key) for key, _ in new.objects]
                    require_spared(self._store, seen, lease.path, [identity(one) for one in fresh])
            with clock.phase("commit"):
                self._settled(lease, manifest, new.hash if new else manifest.root, tag, seen)
            held_s = time.monotonic() - held
        return self._outcome(lease_path, manifest, self._read_manifest(), held, clock, held_s=held_s)

    def release(
        self,
        paths: Collection[str],
        *,
        floor: str | None,
        holder: str,
        now: datetime,
        created: Collection[str] = (),
    ) -> Released:
        """Take away those of ``paths`` that are reserved and still empty, and what is empty without them.

        Only directories below ``floor`` or among ``created`` go with their last child. They are looked at under the
        lease: what somebody published meanwhile stays. One lease, one commit; none when there is nothing to take away.
        Raises PathBusy, and what a commit raises.
        """
        manifest = self._read_manifest()
        empty = self._empty(manifest, paths, floor, created)
        if not empty:
            return Released(manifest.revision, ())
        with self._gateway.lease(self.fqrn, _common(empty), hostname=holder) as lease:
            seen, manifest = look(self._store), self._read_manifest()
            empty = [path for path in self._empty(manifest, paths, floor, created) if is_below(path, lease.path)]
            revision = manifest.revision
            if empty:
                edit = Edit(self._catalogs, manifest.root)
                for path in empty:
                    edit.remove(path)
                revision = self._commit(lease, manifest, edit, now, None, _Clock(), seen)
        return Released(revision, tuple(empty))

    # -- private

    def _empty(
        self, manifest: Manifest, paths: Collection[str], floor: str | None, created: Collection[str]
    ) -> Sequence[str]:
        view = View(self._catalogs, manifest.root)
        empty = [path for path in paths if is_reserved(view, path)]
        return topmost(empty, floor, lambda above: [entry.name for entry in view.listing(above)], created)

    def _rehearsed(self, apply: Callable[[Edit], None], now: datetime) -> tuple[Manifest, NewRoot | None]:
        """The current manifest and what a change makes of it, stored; None if that is nothing."""
        manifest = self._read_manifest()
        edit = Edit(self._catalogs, manifest.root)
        apply(edit)
        if not edit.changed:
            return manifest, None
        new = edit.finish(int(now.timestamp()))
        store_all(self._store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
        return manifest, new

    def _confirmed(self, changeset: Changeset, revision: int) -> Manifest:
        """The current manifest; if somebody replaced the tree by now, what the manifest of our revision said."""
        path, after = changeset.destination, self._read_manifest()
        view = View(self._catalogs, after.root)
        if is_tree(view.nested_at(path), changeset.root):
            return after
        while (root := view.root.catalog).revision > revision and root.previous_revision:
            view = View(self._catalogs, root.previous_revision)
        if not is_tree(view.nested_at(path), changeset.root):
            raise BaseChanged(path, f"the gateway reported success, but revision {revision} does not hold it")
        return dataclasses.replace(after, root=view.root_hash, revision=revision)

    def _stored(self, changeset: Changeset) -> Catalog:
        """The changeset's catalog, read from the store itself and verified.

        Once it hangs it is what readers get, and what it counts stays in the counters of all catalogs above.
        """
        path, root = changeset.destination, changeset.root.with_suffix(CATALOG)
        if changeset.repository != self.fqrn:
            raise RepositoryError(self.fqrn, f"the changeset for {path} was prepared for {changeset.repository!r}")
        if not changeset.stored:
            raise ObjectMissing(root.key, f"the changeset for {path} is of a dry run; prepare the tree for good")
        try:
            database = CatalogCache(self._store, budget=0).database(root)
        except ObjectMissing:
            raise ObjectsLost(path, f"its root catalog {root.key} is not in the store", (root.key,)) from None
        except FormatError as fault:
            raise ObjectDamaged(root.key, f"the catalog prepared for {path} is unreadable ({fault})") from fault
        catalog = Catalog.load(database)
        if catalog.path != path:
            raise CatalogError(path, f"the changeset names a catalog that was made for {catalog.path or '/'}")
        if (catalog.statistics, len(database)) != (changeset.statistics, changeset.root_size):
            raise CatalogError(path, "the prepared catalog is not as its changeset describes it; prepare it again")
        return catalog

    def _tagged(self, manifest: Manifest, tag: NewTag, changeset: Changeset) -> bool:
        """Whether the tag names a revision that holds the changeset: an earlier try came as far as that."""
        found = load_history(self._store, manifest).tag(tag.name)
        if found is None:
            return False
        return is_tree(View(self._catalogs, found.hash).nested_at(changeset.destination), changeset.root)

    def _require_base(self, edit: Edit, there: NestedRef | None, changeset: Changeset, *, replace: bool) -> None:
        path = changeset.destination
        if there is None:
            raise NotReserved(path)
        if is_free(edit, path, changeset.root):
            return
        if not replace:
            raise occupied(path)
        if changeset.base_root is None or not is_tree(self._derived_from(changeset.base_root, path), there.hash):
            raise BaseChanged(path, "another publication put something there since this change was prepared")

    def _derived_from(self, base: ObjectHash, path: str) -> NestedRef | None:
        try:
            return View(self._catalogs, base).nested_at(path)
        except ObjectMissing:
            raise BaseChanged(path, f"revision {base} that this was derived from was collected; derive again") from None

    def _commit(
        self, lease: Lease, manifest: Manifest, edit: Edit, now: datetime, tag: NewTag | None, clock: _Clock, seen: Look
    ) -> int:
        with clock.phase("upload"):
            edit.require_room(**self._most)
            new = edit.finish(int(now.timestamp()))
            fresh = [packed.hash for packed in new.catalogs] + [hash_of_key(key) for key, _ in new.objects]
            require_spared(self._store, seen, lease.path, [identity(one) for one in fresh])
            store_all(self._store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
        with clock.phase("commit"):
            return self._settled(lease, manifest, new.hash, tag, seen)

    def _settled(self, lease: Lease, manifest: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        try:
            return self._gateway.commit(lease, manifest.root, new, tag=tag, generation=seen.token)
        except CommitUnclear:
            after = self._read_manifest()
            if self._holds(after, manifest.root, new, lease.path):
                return after.revision
            raise

    def _holds(self, after: Manifest, base: ObjectHash, new: ObjectHash, lease_path: str) -> bool:
        """Whether nothing of a change is left to be done to a revision."""
        try:
            return not merge(self._catalogs, base=base, new=new, current=after.root, lease_path=lease_path).changed
        except (BaseChanged, MergeError):
            return False

    def _outcome(
        self,
        path: str,
        before: Manifest,
        after: Manifest,
        held: float,
        clock: _Clock,
        *,
        unchanged: bool = False,
        held_s: float | None = None,
        nested: ObjectHash | None = None,
    ) -> Published:
        standing = nested
        if unchanged:
            reference = View(self._catalogs, after.root).nested_at(path)
            standing = reference.hash if reference else None
        return Published(
            path, before.revision, after.revision, after.root, standing,
            held_s if held_s is not None else time.monotonic() - held, unchanged, dict(clock.phases),
        )  # fmt: skip


def _other_layout(prepared: Layout, present: Layout) -> str:
    return f"its catalogs have {prepared.value}, those of the repository have {present.value}"


def _common(paths: Sequence[str]) -> str:
    """The lease for creating these: the topmost of them if all lie below it, else the deepest directory above all."""
    top = min(paths, key=len)
    while not all(is_below(path, top) for path in paths):
        top = parent_of(top)
    return top
