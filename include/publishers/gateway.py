"""The kinds of gateway that a native publisher commits through: Nightshift's own, and the stock one.

Leases are the same through both. What differs is how a commit is made and its outcome found out, and what may be asked
at all.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from include.cvmfs.commit.commit import NewTag, load_history
from include.cvmfs.commit.merge import merge
from include.cvmfs.coordination.generation import Look, require_unmoved
from include.cvmfs.errors import BaseChanged, GenerationMoved, MergeError, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.revision import Revision
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
from include.publishers.capabilities import Loss, Way, require
from include.publishers.errors import NotSupported, WorkReverted
from include.publishers.stock_merge import concerns, reverted, stands
from include.storage.store import Store

log = logging.getLogger(__name__)

_LASTING = frozenset({TagRefused.code, REFLOG_MISSING.code})


@dataclass(frozen=True, slots=True)
class WriterSide:
    """A repository as its writers see it, without any cache of readers in between.

    Attributes:
        fqrn: The repository's name.
        store: Its store.
        catalogs: The catalogs of ``store``.
        read_manifest: Returns the current manifest, its signature verified.
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

    Attributes:
        repository: The repository as its writers see it.
        client: A client of the gateway (docs/formats.md, gateway).
        way: Its column in the table of capabilities.
        tries: How often a change may be tried, each time under a new lease.
        leases_everything: Whether a lease may be on the whole repository.
    """

    repository: WriterSide
    client: GatewayClient
    way: ClassVar[Way]
    tries: ClassVar[int] = 1
    leases_everything: ClassVar[bool] = True

    @abstractmethod
    def commit(self, lease: Lease, base: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        """Publish a change whose objects and catalogs are stored.

        If the reply is lost, the manifest is read to find out whether the change was published.

        Args:
            lease: The lease, which the commit uses up.
            base: The manifest that the change was derived from.
            new: The hash of its new root catalog.
            tag: A name for the new revision; None: none.
            seen: The collections when the change was judged.

        Returns:
            The number of the revision that holds the change.

        Raises:
            GatewayError: The gateway refused the change, or could not be reached.
        """


def a_new_lease_may_help(error: GatewayError) -> bool:
    """Whether to drop the lease, to look, and to derive the change again: it may be published, or be taken then."""
    return isinstance(error, LeaseLost | CommitUnclear | CommitFailed) and error.code not in _LASTING


@dataclass(frozen=True, slots=True)
class NightshiftGateway(RepositoryGateway):
    """Our own service: it merges, judges the base of a commit, and repeats a commit that failed."""

    way: ClassVar[Way] = Way.NATIVE_OURS

    def commit(self, lease: Lease, base: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        try:
            return self.client.commit(lease, base.root, new, tag=tag, generation=seen.token)
        except CommitUnclear:
            after = self.repository.read_manifest()
            if self._holds(after, base.root, new, lease.path):
                return after.revision
            raise

    def _holds(self, after: Manifest, base: ObjectHash, new: ObjectHash, lease_path: str) -> bool:
        """Whether nothing of a change is left to be done to a revision."""
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
    way: ClassVar[Way] = Way.NATIVE_STOCK
    tries: ClassVar[int] = 5
    leases_everything: ClassVar[bool] = False  # the path of such a lease would end in a slash

    def commit(self, lease: Lease, base: Manifest, new: ObjectHash, tag: NewTag | None, seen: Look) -> int:
        """As every gateway's. Raises NotSupported and Lossy for what the receiver would break or lose, WorkReverted."""
        before, wanted = self.repository.view(base.root), self.repository.view(new)
        exact = self._require_kept(before, wanted, lease.path)
        self._require_still_possible(lease, base, tag, seen)
        try:
            revision = self.client.commit(lease, base.root, new, tag=tag)
        except GatewayError as error:
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
        """What our own service would refuse in the commit itself. Raises TagRefused, CollectionMoved."""
        fqrn = self.repository.fqrn
        if tag is not None and self._has_tag(base, tag):
            raise TagRefused(
                f"commit on {lease.full_path}: the tag {tag.name!r} is there already; {TagRefused.hint}",
                repository=fqrn, path=lease.path, key_id=lease.key_id,
            )  # fmt: skip
        try:
            # it would not look: this is as close to the switch as we come
            require_unmoved(self.repository.store, seen.token, fqrn=fqrn)
        except GenerationMoved as moved:
            raise CollectionMoved(
                f"commit on {lease.full_path}: {moved}; {CollectionMoved.hint}", repository=fqrn, path=lease.path
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
