"""Commits into the repositories' stores by the one switch that all writers use, ``include.cvmfs.commit.commit``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from include.cvmfs.commit.commit import MANIFEST_KEY, Change, NewTag, SwitchStep, commit_group, read_head
from include.cvmfs.commit.metadata_objects import Records
from include.cvmfs.commit.repair import adopt_reflog
from include.cvmfs.coordination.condemned import condemned_among
from include.cvmfs.coordination.generation import CollectionProgress, look, require_unmoved
from include.cvmfs.errors import CvmfsError, GenerationMoved, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.keys import ManifestSigner
from include.cvmfs.revision.needed_objects import KnownRoot, Lineage, added_objects
from include.cvmfs.revision.repository import ManifestVerifier
from include.gateway.service.commits.ownership import PATIENCE_S, Owned, Ownership, claim
from include.gateway.service.commits.queue import CommitOrder, Fence
from include.gateway.service.config import ConfigError, RepositoryConfig, ServiceConfig
from include.storage.errors import StoreError
from include.storage.store import Store

log = logging.getLogger(__name__)

GENERIC = "generic-"
OPENING_S = 5.0
"""Seconds that a start waits for the stores. Others are opened beside the commits."""
ANSWERING_S = 2 * PATIENCE_S


class RevisionMemory(Protocol):
    """Keeps revisions that were once found over a restart."""

    def revisions(self, repository: str) -> Iterable[KnownRoot]: ...

    def remember_revisions(self, repository: str, revisions: Sequence[KnownRoot]) -> None: ...


@dataclass(slots=True)
class _Opened:
    store: Store
    signer: ManifestSigner
    catalogs: CatalogCache
    voucher: ManifestVerifier
    lineage: Lineage
    ownership: Ownership | None
    records: Records = field(default_factory=Records)
    turn: threading.Lock = field(default_factory=threading.Lock)


class StoreCommitter:
    """Opens each repository at its first commit, and keeps it open with its catalogs, tags and reflog.

    ``signer`` finds who signs for a repository.
    """

    def __init__(
        self, config: ServiceConfig, signer: Callable[[str], ManifestSigner], memory: RevisionMemory | None = None
    ) -> None:
        self._signer = signer
        self._repositories: Mapping[str, RepositoryConfig] = config.repositories
        self._memory = memory
        self._opened: dict[str, _Opened] = {}
        self._before: dict[str, _Opened] = {}  # by an older configuration
        self._turns: dict[str, threading.Lock] = {}
        self._opening = threading.Lock()
        self._releasing: list[threading.Thread] = []
        self._answering: set[str] = set()

    def commit(
        self, orders: Sequence[CommitOrder], *, fence: Fence, on_step: Callable[[SwitchStep], None]
    ) -> list[int | Exception]:
        name = orders[0].repository
        opened = self._open(name)
        now = time.time()

        def barrier(numbers: Sequence[int]) -> Mapping[int, Exception]:
            try:
                if opened.ownership is not None:
                    opened.ownership.require()
            except (Owned, StoreError) as error:
                return dict.fromkeys(numbers, error)
            # Only those whom no collection passed are asked for their leases: these are marked as about to switch.
            return _passed(opened, {number: orders[number] for number in numbers}) or fence(numbers)

        with opened.turn:
            outcomes = commit_group(
                opened.store,
                [
                    # A millisecond apart, so that tags of the time are as different as if they had come one by one.
                    Change(order.lease_path, order.old_root, order.new_root, _tag(order, now + number / 1000))
                    for number, order in enumerate(orders)
                ],
                fqrn=name,
                signer=opened.signer,
                now=int(now),
                voucher=opened.voucher,
                catalogs=opened.catalogs,
                records=opened.records,
                lineage=opened.lineage,
                fence=barrier,
                on_step=on_step,
            )
            if self._memory is not None and (learnt := opened.lineage.learnt()):
                self._memory.remember_revisions(name, learnt)
        return [outcome if isinstance(outcome, Exception) else outcome.manifest.revision for outcome in outcomes]

    def start(self, wait_s: float = OPENING_S) -> None:
        """Begin to open every repository, and to finish what a crash left behind there.

        Waits ``wait_s`` for stores to answer at all, and longer for those that did. Raises Owned if another gateway is
        at work on one of these, where the store would not keep the two apart.
        """
        owned: list[Owned] = []
        threads = {
            name: threading.Thread(target=self._start_one, args=(name, owned), name=f"gateway-open-{name}", daemon=True)
            for name in list(self._repositories)
        }
        for thread in threads.values():
            thread.start()
        until = time.monotonic() + wait_s
        for thread in threads.values():
            thread.join(max(0.0, until - time.monotonic()))
        if wait_s:
            until += ANSWERING_S
            for name in list(self._answering):
                threads[name].join(max(0.0, until - time.monotonic()))
        if owned:
            self.close()
            raise owned[0]

    def reconfigure(self, config: ServiceConfig) -> None:
        """Open every repository again from this configuration when it is needed next; those that are ours stay ours.

        Waits for no store: what is no longer served is released when its commit has ended.
        """
        with self._opening:
            self._before |= self._opened
            self._opened = {}
            self._repositories = config.repositories
            gone = [self._before.pop(name) for name in list(self._before) if name not in config.repositories]
        for opened in gone:
            self._release(opened)

    def close(self) -> None:
        """Release the repositories, each once its commit has ended."""
        with self._opening:
            held = {**self._before, **self._opened}
            self._before, self._opened, self._repositories = {}, {}, {}
        for opened in held.values():
            self._release(opened)
        for thread in self._releasing:
            thread.join()

    def _release(self, opened: _Opened) -> None:
        """In a thread of its own: neither a commit that is under way nor a silent store holds up anything else."""
        if opened.ownership is not None:
            thread = threading.Thread(target=_release, args=(opened.ownership, opened.turn), daemon=True)
            self._releasing = [thread, *(other for other in self._releasing if other.is_alive())]
            thread.start()

    def _start_one(self, name: str, owned: list[Owned]) -> None:
        try:
            self._open(name)
        except Exception as error:  # noqa: BLE001 - whatever is missing may be there at the first commit
            if isinstance(error, Owned):
                owned.append(error)
            fields = {"repository": name, "detail": f"{type(error).__name__}: {error}"}
            log.warning("repository not opened yet, the first commit tries again", extra={"fields": fields})

    def _open(self, name: str) -> _Opened:
        with self._opening:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            if (opened := self._opened.get(name)) is None:
                repository = self._repositories.get(name)
                if repository is None:
                    raise ConfigError(f"{name} is not served any more")
                signer = self._signer(name)
                store, ownership = self._claimed(name, repository.store())
                catalogs = CatalogCache(store)
                revisions = self._memory.revisions(name) if self._memory is not None else ()
                voucher = ManifestVerifier(signer, repository.public_keys)
                lineage = Lineage(catalogs, revisions)
                opened = _Opened(store, signer, catalogs, voucher, lineage, ownership)
                self._settle(name, opened)
                self._keep(name, opened, repository)
            return opened

    def _keep(self, name: str, opened: _Opened, repository: RepositoryConfig) -> None:
        """For the next commits, unless the configuration was read again meanwhile."""
        with self._opening:
            served = self._repositories.get(name)
            if served is not None:
                (self._opened if served is repository else self._before)[name] = opened
        if served is None:
            self._release(opened)

    def _claimed(self, name: str, store: Store) -> tuple[Store, Ownership | None]:
        """The store, ours if it has to be. Raises Owned, StoreError."""
        with self._opening:
            before = self._before.pop(name, None)
        if before is not None and before.store.url == store.url:
            traits = before.store.traits
            return store if traits is None else store.with_traits(traits), before.ownership
        if before is not None:
            self._release(before)
        store.exists(MANIFEST_KEY)
        self._answering.add(name)
        return claim(store, name)

    @staticmethod
    def _settle(name: str, opened: _Opened) -> None:
        try:
            if adopt_reflog(opened.store, name, signer=opened.signer, now=int(time.time()), voucher=opened.voucher):
                log.warning(
                    "a reflog that a crash left ahead of the manifest was taken over",
                    extra={"fields": {"repository": name}},
                )
        except (CvmfsError, StoreError) as error:
            fields = {"repository": name, "detail": str(error)}
            log.warning("reflog not checked; the next commit does it", extra={"fields": fields})


def _release(ownership: Ownership, turn: threading.Lock) -> None:
    with turn:
        ownership.release()


def _passed(opened: _Opened, orders: Mapping[int, CommitOrder]) -> dict[int, Exception]:
    """Return which changes a collection has passed since they were judged, or before their objects were all there."""
    tokens: dict[str, Exception | None] = {}
    passed: dict[int, Exception] = {}
    # those that are judged here first: they may take a while
    for number, order in sorted(orders.items(), key=lambda item: item[1].generation != ""):
        token = order.generation or f"not judged: {number}"
        if token not in tokens:
            try:
                if order.generation:
                    require_unmoved(opened.store, token, fqrn=order.repository)
                else:
                    _require_kept(opened, order)
                tokens[token] = None
            except (CvmfsError, StoreError) as error:
                tokens[token] = error
        if (problem := tokens[token]) is not None:
            passed[number] = problem
    return passed


def _require_kept(opened: _Opened, order: CommitOrder) -> None:
    """Judge the change of a publisher that knows of no collections, as our publishers judge theirs.

    Objects on the list of a collection that ended since its first payload, or on the one that is out, may be gone;
    where their shard was swept before, they came after. Without such a list nothing is read. Raises GenerationMoved,
    and what reading catalogs and lists raises.
    """
    store, name = opened.store, order.repository
    before = look(store)
    # without a payload all was stored by other means, at any time
    began = CollectionProgress.parse(order.since) if order.since else CollectionProgress(before.completed)
    since, running = before.lists_since(began), before.running_since(began)
    if since is None:
        raise GenerationMoved(name, f"what was collected until {before.token} since the first payload is unknown")
    lists = [*since, *([] if running is None else [running])]
    if not lists:
        return
    head = read_head(store, name, opened.voucher).manifest
    try:
        needed = added_objects(opened.catalogs, head.root, order.new_root, order.lease_path)
    except ObjectMissing as gone:
        raise GenerationMoved(name, f"{gone.key} is gone, and a collection ran or runs") from None
    for missed in lists:
        if going := condemned_among(store, missed.name, needed, missed.shards):
            what = (
                f"{len(going)} of the objects that it needs were on the list of a collection, which is at {before.mark}"
            )
            raise GenerationMoved(name, what)
    require_unmoved(store, before.token, fqrn=name)


def _tag(order: CommitOrder, now: float) -> NewTag | None:
    """The tag to make; ``generic-…`` becomes the time of the commit, as the stock receiver has it."""
    if not order.tag_name:
        return None
    name = order.tag_name
    if name.startswith(GENERIC):
        name = GENERIC + datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return NewTag(name, order.tag_description)
