"""The native publisher in front of a stock gateway, which merges without looking at the base and forgets its failures.

What is different there (docs/formats.md, merge of a stock gateway): a commit that failed cannot be repeated under its
lease, so that lease is dropped and the change derived again under a new one; an outcome that is not known is settled by
looking; what the receiver would lose is refused before it is sent; and after a commit it is verified that nothing of
others was reverted. In front of our own service it is the native publisher and nothing more.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TypeVar

from include.cvmfs.commit.commit import NewTag, load_history
from include.cvmfs.commit.edit import Edit
from include.cvmfs.coordination.generation import Look, require_unmoved
from include.cvmfs.errors import GenerationMoved, ObjectMissing
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.revision.view import View
from include.gateway.client.client import GatewayClient
from include.gateway.client.values import Lease
from include.gateway.errors import (
    REFLOG_MISSING,
    CollectionMoved,
    CommitFailed,
    CommitUnclear,
    GatewayError,
    LeaseLost,
    TagRefused,
)
from include.publishers.base import Published, Released, Reserved
from include.publishers.capabilities import Loss, Operation, Way, require
from include.publishers.errors import NotSupported, WorkReverted
from include.publishers.native import NativePublisher
from include.publishers.stock_merge import concerns, reverted, stands
from include.storage.store import Store

T = TypeVar("T")

log = logging.getLogger(__name__)

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_LASTING = frozenset({TagRefused.code, REFLOG_MISSING.code})


def a_new_lease_may_help(error: GatewayError) -> bool:
    """Whether to drop the lease, to look, and to derive the change again: it may be published, or be taken then."""
    return isinstance(error, LeaseLost | CommitUnclear | CommitFailed) and error.code not in _LASTING


class StockPublisher(NativePublisher):
    """As ``NativePublisher``, through a gateway that ``is_stock`` says to be one; asked once, when it is needed.

    ``allow_lossy``: what may get lost on the way without being refused. ``pause`` waits before a new lease is taken.
    """

    def __init__(
        self,
        fqrn: str,
        store: Store,
        gateway: GatewayClient,
        read_manifest: Callable[[], Manifest],
        *,
        is_stock: Callable[[], bool],
        allow_lossy: Collection[Loss] = (),
        catalog_entries: int = 0,
        root_entries: int = 0,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(
            fqrn, store, gateway, read_manifest, catalog_entries=catalog_entries, root_entries=root_entries
        )
        self._is_stock = is_stock
        self._allow_lossy = frozenset(allow_lossy)
        self._pause = pause or threading.Event().wait

    def reserve(
        self,
        destinations: Sequence[str],
        *,
        nested: Sequence[str],
        holder: str,
        now: datetime,
        on_create: Callable[[Sequence[str]], None] | None = None,
    ) -> Reserved:
        """A commit for each top directory: no lease is on the whole repository, whose path would end in a slash."""
        tops = _by_top(destinations)
        if len(tops) < 2 or not self._is_stock():
            tops = {"": list(destinations)}
        done: Reserved | None = None
        for places in tops.values():
            one = self._again(
                lambda places=places: super(StockPublisher, self).reserve(  # type: ignore[misc]
                    places, nested=nested, holder=holder, now=now, on_create=on_create
                )
            )
            before = done or Reserved(0, ())
            done = Reserved(one.revision, before.created + one.created, before.lease_held_s + one.lease_held_s)
        return done or Reserved(self._read_manifest().revision, ())

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
        """The destination's reserved catalog is swapped by its hash, so that the receiver does not walk the tree.

        Raises NotSupported for a tree with nanoseconds.
        """
        if changeset.root_entry.mtime_ns is not None and self._is_stock():
            require(Way.NATIVE_STOCK, Operation.TREE_MTIME_NS, fqrn=self.fqrn, path=changeset.destination)

        def once() -> Published:
            return super(StockPublisher, self).publish(
                changeset, holder=holder, now=now, replace=replace, tag=tag, on_lease=on_lease
            )

        return self._again(once)

    def remove(self, path: str, *, holder: str, now: datetime) -> Published:
        return self._again(lambda: super(StockPublisher, self).remove(path, holder=holder, now=now))

    def release(
        self,
        paths: Collection[str],
        *,
        floor: str | None,
        holder: str,
        now: datetime,
        created: Collection[str] = (),
    ) -> Released:
        """A commit for each top directory, as for a reserve."""
        tops = _by_top(paths)
        if len(tops) < 2 or not self._is_stock():
            tops = {"": list(paths)}
        done: Released | None = None
        for places in tops.values():
            one = self._again(
                lambda places=places: super(StockPublisher, self).release(  # type: ignore[misc]
                    places, floor=floor, holder=holder, now=now, created=created
                )
            )
            done = Released(one.revision, (done.removed if done else ()) + one.removed)
        return done or Released(self._read_manifest().revision, ())

    def change(
        self,
        lease_path: str,
        apply: Callable[[Edit], None],
        *,
        holder: str,
        now: datetime,
        tag: NewTag | None = None,
    ) -> Published:
        """Raises NotSupported for a lease on the whole repository, and for entries that break a stock receiver."""
        if lease_path.strip("/") == "" and self._is_stock():
            cure = "make the change below one directory at a time"
            raise NotSupported(
                self.fqrn,
                f"a change of / needs a lease on everything, which a stock gateway misreads; {cure}",
                path="/",
            )
        return self._again(
            lambda: super(StockPublisher, self).change(lease_path, apply, holder=holder, now=now, tag=tag)
        )

    # -- private

    def _again(self, attempt: Callable[[], T]) -> T:
        """Until it is done, or fails in a way that a new lease does not cure."""
        number = 0
        while True:
            number += 1
            try:
                return attempt()
            except GatewayError as error:
                if not a_new_lease_may_help(error) or number == _TRIES or not self._is_stock():
                    raise
                pause_s = random.random() * _FIRST_PAUSE_S * 2.0 ** (number - 1)  # noqa: S311 - jitter
                log.warning("new lease in %.1f s, try %d of %d: %s", pause_s, number + 1, _TRIES, error)
            self._pause(pause_s)

    def _settled(self, lease: Lease, manifest: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        if not self._is_stock():
            return super()._settled(lease, manifest, new, tag, seen)
        base, wanted = View(self._catalogs, manifest.root), View(self._catalogs, new)
        exact = self._require_kept(base, wanted, lease.path)
        if tag is not None and load_history(self._store, manifest).tag(tag.name) is not None:
            raise TagRefused(
                f"commit on {lease.full_path}: the tag {tag.name!r} is there already; {TagRefused.hint}",
                repository=self.fqrn, path=lease.path, key_id=lease.key_id,
            )  # fmt: skip
        try:
            # it would not look: this is as close to the switch as we come
            require_unmoved(self._store, seen.token, fqrn=self.fqrn)
        except GenerationMoved as moved:
            raise CollectionMoved(
                f"commit on {lease.full_path}: {moved}; {CollectionMoved.hint}", repository=self.fqrn, path=lease.path
            ) from None
        try:
            revision = self._gateway.commit(lease, manifest.root, new, tag=tag)
        except GatewayError as error:
            after = self._read_manifest()
            if after.root == manifest.root or not self._arrived(after, wanted, lease.path, tag):
                raise
            log.warning("%s: found in revision %d although: %s", lease.full_path, after.revision, error)
            revision = self._revision_that_holds(after, wanted, lease.path, manifest.revision)
        self._require_others_kept(base, wanted, revision, lease.path, exact=exact)
        return revision

    def _require_kept(self, base: View, wanted: View, lease_path: str) -> bool:
        """Refuse what the receiver would lose or die of; whether all of the change arrives."""
        exact = True
        for one in concerns(base, wanted, lease_path):
            if one.breaks:
                cure = "publish its whole tree again, or take the whole tree away"
                raise NotSupported(
                    self.fqrn, f"{one.path}: a stock receiver breaks at changed hard links; {cure}", path=one.path
                )
            require(Way.NATIVE_STOCK, one.operation, fqrn=self.fqrn, path=one.path, allow_lossy=self._allow_lossy)
            exact = False
        return exact

    def _arrived(self, after: Manifest, wanted: View, lease_path: str, tag: NewTag | None) -> bool:
        if tag is not None and load_history(self._store, after).tag(tag.name) is None:
            return False
        return stands(wanted, View(self._catalogs, after.root), lease_path)

    def _revision_that_holds(self, after: Manifest, wanted: View, lease_path: str, older_than: int) -> int:
        """The first revision after ours was derived in which the change stands."""
        found, view = after.revision, View(self._catalogs, after.root)
        while (previous := view.root.catalog.previous_revision) is not None:
            view = View(self._catalogs, previous)
            revision = view.root.catalog.revision
            if revision <= older_than or not stands(wanted, view, lease_path):
                break
            found = revision
        return found

    def _require_others_kept(self, base: View, wanted: View, revision: int, lease_path: str, *, exact: bool) -> None:
        """Raises WorkReverted if our commit changed anything outside of its lease."""
        try:
            after = View(self._catalogs, self._read_manifest().root)
            while after.root.catalog.revision > revision and after.root.catalog.previous_revision:
                after = View(self._catalogs, after.root.catalog.previous_revision)
            previous = after.root.catalog.previous_revision
            if after.root.catalog.revision != revision or previous is None:
                log.warning("revision %d cannot be compared with the one before: its chain is broken", revision)
                return
            found = reverted(
                base=base, new=wanted, before=View(self._catalogs, previous), after=after, lease=lease_path, exact=exact
            )
        except ObjectMissing as missing:
            log.warning("revision %d cannot be compared with the one before: %s", revision, missing)
            return
        if found:
            more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
            raise WorkReverted(
                self.fqrn,
                f"revision {revision}, made of our commit on {lease_path}, changed what was not leased: "
                f"{'; '.join(found[:3])}{more}. Compare it with the revision before (nightshift repo diff), and "
                "publish again what was lost; look for another writer without a lease",
                path=lease_path,
                revision=revision,
            )


def _by_top(paths: Collection[str]) -> dict[str, list[str]]:
    """The paths by their first directory."""
    tops: dict[str, list[str]] = {}
    for path in paths:
        tops.setdefault(path.split("/")[1], []).append(path)
    return tops
