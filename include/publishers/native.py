"""Publication without payload: objects and catalogs go straight to the store, the gateway only commits.

Two steps keep leases short whatever the size of a tree (docs/decisions, reserve then swap): ``reserve`` creates a
build's skeleton with an empty nested catalog at every destination, and ``publish`` swaps exactly that catalog. Both
read the manifest under the lease and derive the new root from its content.
"""

from __future__ import annotations

import functools
import logging
import random
import stat
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from include.cvmfs import errors
from include.cvmfs.commit.commit import NewTag, load_history
from include.cvmfs.commit.edit import Edit, NewRoot
from include.cvmfs.commit.metadata_objects import store_all
from include.cvmfs.coordination.generation import Look, look
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.paths import common_top, is_below
from include.cvmfs.ingest.changeset import Changeset
from include.gateway.client.client import GatewayClient
from include.gateway.client.leases import Lease
from include.gateway.errors import CollectionMoved, GatewayError
from include.publishers import required_objects
from include.publishers.base import PhaseTimes, Published, Released, Reserved
from include.publishers.capabilities import Operation, require
from include.publishers.errors import NotSupported
from include.publishers.gateway import RepositoryGateway, WriterSide, a_new_lease_may_help

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)
_LOOKS = 20
"""Number of times that a change is judged, when collections publish a list between its judgement and its switch."""
_FIRST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class _Base:
    """Base of a change under its lease. Collections are read first: later ones are noticed."""

    seen: Look
    manifest: Manifest
    edit: Edit


def _under_new_leases(
    change: Callable[Concatenate[NativePublisher, P], T],
) -> Callable[Concatenate[NativePublisher, P], T]:
    """Make a change again, under a new lease: after a collection went on between its judgement and its switch, and
    where a gateway cannot repeat a commit that failed."""

    @functools.wraps(change)
    def repeated(publisher: NativePublisher, /, *arguments: P.args, **more: P.kwargs) -> T:
        number = looks = 1
        while True:
            try:
                return change(publisher, *arguments, **more)
            except GatewayError as error:
                if isinstance(error, CollectionMoved) and looks < _LOOKS:
                    looks += 1
                    log.info("look %d of %d: %s", looks, _LOOKS, error)
                    continue
                if not a_new_lease_may_help(error) or number >= publisher.gateway().tries:
                    raise
                pause_s = random.random() * _FIRST_PAUSE_S * 2.0 ** (number - 1)  # noqa: S311 - jitter
                number += 1
                log.warning("new lease in %.1f s, try %d of %d: %s", pause_s, number, publisher.gateway().tries, error)
            publisher.pause(pause_s)

    return repeated


class NativePublisher:
    """Publishes to one repository. For arguments, results and errors of its methods see `Publisher`.

    Args:
        repository: The repository as its writers see it.
        client: Takes the leases.
        gateway: Finds out what kind of gateway grants them; called once, when it first matters.
        catalog_entries: Entries that a catalog may grow to; 0: no limit.
        root_entries: Entries that the root catalog may grow to; 0: no limit.
    """

    def __init__(
        self,
        repository: WriterSide,
        client: GatewayClient,
        gateway: Callable[[], RepositoryGateway],
        *,
        catalog_entries: int = 0,
        root_entries: int = 0,
    ) -> None:
        self.fqrn = repository.fqrn
        self.pause: Callable[[float], object] = threading.Event().wait  # before a new lease is taken
        self._most = {"nested": catalog_entries, "root": root_entries}
        self._repository = repository
        self._store, self._view, self._read_manifest = repository.store, repository.view, repository.read_manifest
        self._client = client
        # called when it first matters: replies to a lease say the kind, so that the gateway need not be asked
        self.gateway = functools.cache(gateway)

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

        One lease, one commit; none at all when everything is there; one for each first directory where no lease may be
        on the whole repository.
        """
        done = [self._reserve(part, nested, holder, now, on_create) for part in self._parts(destinations)]
        created = tuple(path for reserved in done for path in reserved.created)
        return Reserved(done[-1].revision, created, sum(reserved.lease_held_s for reserved in done))

    @_under_new_leases
    def _reserve(
        self,
        destinations: Sequence[str],
        nested: Sequence[str],
        holder: str,
        now: datetime,
        on_create: Callable[[Sequence[str]], None] | None,
    ) -> Reserved:
        manifest = self._read_manifest()
        missing = required_objects.missing_directories(self._view(manifest.root), destinations)
        if not missing:
            return Reserved(manifest.revision, ())
        started = time.monotonic()
        with self._client.lease(self.fqrn, common_top(missing), hostname=holder) as lease:
            base = self._base()
            created = required_objects.missing_directories(self._view(base.manifest.root), destinations)
            if created and not all(is_below(path, lease.path) for path in created):
                raise errors.BaseChanged(lease.path, "directories above it went away meanwhile; reserve again")
            if created and on_create:
                on_create(created)
            entry = _DIRECTORY.changed(mtime=int(now.timestamp()))
            for path in created:
                make = base.edit.make_nested if path in destinations or path in nested else base.edit.add
                make(path, entry)
            revision = self._commit(lease, base, now) if created else base.manifest.revision
        return Reserved(revision, tuple(created), time.monotonic() - started)

    @_under_new_leases
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

        A destination that holds this very tree already is left as it is. Raises NotSupported for a tree with
        nanoseconds through a stock gateway, PrepareAgain and CollectionRunning for a changeset whose objects are not
        all sure to be there (docs/decisions, collections), and other CvmfsErrors for one that is damaged or of another
        repository.
        """
        if changeset.root_entry.mtime_ns is not None:
            require(self.gateway().way, Operation.TREE_MTIME_NS, fqrn=self.fqrn, path=changeset.destination)
        path, clock = changeset.destination, PhaseTimes()
        clearance = required_objects.ChangesetCheck(self._store, self._repository.catalogs, changeset)
        with clock.phase("changeset"):
            catalog = self._stored(changeset)
            root_entry, totals = catalog.root_entry, catalog.statistics.total
            clearance.require_catalogs(catalog)
            clearance.fault(look(self._store), now)  # what takes long is done before the lease
        started = time.monotonic()
        with self._client.lease(self.fqrn, path, hostname=holder) as lease:
            if on_lease:
                on_lease(lambda: self._client.drop(lease))
            held = time.monotonic()
            clock.phases["lease"] = held - started
            with clock.phase("base"):
                base = self._base()
                edit, there = base.edit, base.edit.nested_at(path)
            if required_objects.is_tree(there, changeset.root) and (
                tag is None or self._tagged(base.manifest, tag, changeset)
            ):
                self._client.drop(lease)
                return _published(path, base.manifest, base.manifest, time.monotonic() - held, clock, there)
            if (fault := clearance.fault(base.seen, now)) is not None:
                raise fault
            if catalog.layout is not edit.root.layout:
                raise errors.LAYOUT_CHANGED(
                    path,
                    f"its catalogs have {catalog.layout.value}, those of the repository have {edit.root.layout.value}",
                )
            with clock.phase("hang"):
                self._require_base(edit, there, changeset, replace=replace)
                edit.hang(changeset.reference, root_entry, totals)
            revision = self._commit(lease, base, now, tag, clock)
            held_s = time.monotonic() - held
        with clock.phase("confirm"):
            after = self._confirmed(changeset, revision)
        return _published(path, base.manifest, after, held_s, clock, changeset.reference)

    @_under_new_leases
    def remove(self, path: str, *, holder: str, now: datetime) -> Published:
        """Remove the tree or file at ``path``."""
        clock = PhaseTimes()
        with self._client.lease(self.fqrn, path, hostname=holder) as lease:
            held = time.monotonic()
            base = self._base()
            base.edit.remove(path)
            self._commit(lease, base, now, clock=clock)
            held_s = time.monotonic() - held
        return _published(path, base.manifest, self._read_manifest(), held_s, clock)

    @_under_new_leases
    def change(
        self, lease_path: str, apply: Callable[[Edit], None], *, holder: str, now: datetime, tag: NewTag | None = None
    ) -> Published:
        """Commit whatever ``apply`` does to an edit, all of it below ``lease_path``, as one revision.

        It is tried, and its catalogs are stored, before the lease is taken; under the lease it is done again only if
        others published meanwhile or a collection went on. Raises what ``apply`` raises, and NotSupported where no
        lease may be on the whole repository.
        """
        if lease_path.strip("/") == "" and not self.gateway().leases_everything:
            raise NotSupported(
                self.fqrn,
                "a change of / needs a lease on everything, which a stock gateway misreads; "
                "make the change below one directory at a time",
                path="/",
            )
        clock = PhaseTimes()
        with clock.phase("rehearsal"):
            began = look(self._store).moment  # before anything is stored: what is swept later may be among it
            manifest, new = self._rehearsed(apply, now)
        if new is None and tag is None:
            there = self._view(manifest.root).nested_at(lease_path)
            return _published(lease_path, manifest, manifest, 0.0, clock, there)
        with self._client.lease(self.fqrn, lease_path, hostname=holder) as lease:
            held = time.monotonic()
            with clock.phase("base"):
                rehearsed, seen, manifest = manifest, look(self._store), self._read_manifest()
                if manifest.root != rehearsed.root or seen.moment != began:
                    manifest, new = self._rehearsed(apply, now)
                if new is not None:
                    required_objects.require_spared(self._store, seen, lease.path, _objects(new), fqrn=self.fqrn)
            with clock.phase("commit"):
                self.gateway().commit(lease, manifest, new.hash if new else manifest.root, tag, seen)
            held_s = time.monotonic() - held
        return _published(lease_path, manifest, self._read_manifest(), held_s, clock)

    def release(
        self, paths: Collection[str], *, floor: str | None, holder: str, now: datetime, created: Collection[str] = ()
    ) -> Released:
        """Take away those of ``paths`` that are reserved and still empty, and what is empty without them.

        They are checked again under the lease: what others published meanwhile stays. Leases and commits as for a
        reserve.
        """
        done = [self._release(part, floor, holder, now, created) for part in self._parts(paths)]
        return Released(done[-1].revision, tuple(path for released in done for path in released.removed))

    @_under_new_leases
    def _release(
        self, paths: Collection[str], floor: str | None, holder: str, now: datetime, created: Collection[str]
    ) -> Released:
        manifest = self._read_manifest()
        empty = required_objects.unused(self._view(manifest.root), paths, floor, created)
        if not empty:
            return Released(manifest.revision, ())
        with self._client.lease(self.fqrn, common_top(empty), hostname=holder) as lease:
            base = self._base()
            found = required_objects.unused(self._view(base.manifest.root), paths, floor, created)
            empty = tuple(path for path in found if is_below(path, lease.path))
            for path in empty:
                base.edit.remove(path)
            revision = self._commit(lease, base, now) if empty else base.manifest.revision
        return Released(revision, empty)

    # -- private

    def _parts(self, paths: Collection[str]) -> list[list[str]]:
        """Return what may be changed under one lease each: all of the paths, or those below one first directory."""
        tops: dict[str, list[str]] = {}
        for path in paths:
            tops.setdefault(path.split("/")[1], []).append(path)
        return [list(paths)] if len(tops) < 2 or self.gateway().leases_everything else list(tops.values())

    def _base(self) -> _Base:
        seen, manifest = look(self._store), self._read_manifest()
        return _Base(seen, manifest, Edit(self._repository.catalogs, manifest.root))

    def _rehearsed(self, apply: Callable[[Edit], None], now: datetime) -> tuple[Manifest, NewRoot | None]:
        """The current manifest and what a change makes of it, stored; None if that is nothing."""
        manifest = self._read_manifest()
        edit = Edit(self._repository.catalogs, manifest.root)
        apply(edit)
        if not edit.changed:
            return manifest, None
        new = edit.finish(int(now.timestamp()))
        store_all(self._store, _objects(new))
        return manifest, new

    def _confirmed(self, changeset: Changeset, revision: int) -> Manifest:
        """The current manifest; if the tree was replaced meanwhile, a manifest of our revision."""
        path, after = changeset.destination, self._read_manifest()
        if required_objects.is_tree(self._view(after.root).nested_at(path), changeset.root):
            return after
        view = self._repository.view_at(after, revision)
        if not required_objects.is_tree(view.nested_at(path), changeset.root):
            raise errors.BaseChanged(path, f"the gateway reported success, but revision {revision} does not hold it")
        return replace(after, root=view.root_hash, revision=revision)

    def _stored(self, changeset: Changeset) -> Catalog:
        """The changeset's catalog, read from the store itself and verified.

        Once it hangs it is what readers get, and what it counts stays in the counters of all catalogs above.
        """
        path, root = changeset.destination, changeset.root.with_suffix(CATALOG)
        if changeset.repository != self.fqrn:
            raise errors.RepositoryError(
                self.fqrn, f"the changeset for {path} was prepared for {changeset.repository!r}"
            )
        if not changeset.stored:
            raise errors.ObjectMissing(root.key, f"the changeset for {path} is of a dry run; prepare the tree for good")
        try:
            database = CatalogCache(self._store, budget=0).database(root)
        except errors.ObjectMissing:
            raise errors.ObjectsLost(path, f"its root catalog {root.key} is not in the store", (root.key,)) from None
        except errors.FormatError as fault:
            raise errors.ObjectDamaged(root.key, f"the catalog prepared for {path} is unreadable ({fault})") from fault
        catalog = Catalog.load(database)
        if catalog.path != path:
            raise errors.CatalogError(path, f"the changeset names a catalog that was made for {catalog.path or '/'}")
        if (catalog.statistics, len(database)) != (changeset.statistics, changeset.root_size):
            raise errors.CatalogError(
                path, "the prepared catalog is not as its changeset describes it; prepare it again"
            )
        return catalog

    def _tagged(self, manifest: Manifest, tag: NewTag, changeset: Changeset) -> bool:
        """Tell whether the tag names a revision that holds the changeset: an earlier try came as far as that."""
        found = load_history(self._store, manifest).tag(tag.name)
        return found is not None and required_objects.is_tree(
            self._view(found.hash).nested_at(changeset.destination), changeset.root
        )

    def _require_base(self, edit: Edit, there: NestedRef | None, changeset: Changeset, *, replace: bool) -> None:
        path = changeset.destination
        if there is None:
            raise errors.NotReserved(path)
        if required_objects.is_free(edit, path, changeset.root):
            return
        if not replace:
            raise required_objects.occupied(path)
        if not required_objects.is_derived_from(self._repository.catalogs, changeset, there):
            raise errors.BaseChanged(path, "another publication put something there since this change was prepared")

    def _commit(
        self, lease: Lease, base: _Base, now: datetime, tag: NewTag | None = None, clock: PhaseTimes | None = None
    ) -> int:
        clock = clock or PhaseTimes()
        with clock.phase("upload"):
            base.edit.require_room(**self._most)
            new = base.edit.finish(int(now.timestamp()))
            required_objects.require_spared(self._store, base.seen, lease.path, _objects(new), fqrn=self.fqrn)
            store_all(self._store, _objects(new))
        with clock.phase("commit"):
            return self.gateway().commit(lease, base.manifest, new.hash, tag, base.seen)


def _published(
    path: str, before: Manifest, after: Manifest, held_s: float, clock: PhaseTimes, nested: NestedRef | None = None
) -> Published:
    """An outcome; it is unchanged if ``after`` is ``before`` itself, and no manifest that was read since."""
    return Published(
        path, before.revision, after.revision, after.root, nested.hash if nested else None, held_s,
        before is after, dict(clock.phases),
    )  # fmt: skip


def _objects(new: NewRoot) -> list[tuple[str, bytes]]:
    """By key: the new catalogs, and what else the change stores."""
    return [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects)
