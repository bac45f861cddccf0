"""Commits into the repositories' stores by the one switch that everybody uses, ``include.cvmfs.commit``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from include.cvmfs.catalogs import CatalogCache
from include.cvmfs.commit import Change, NewTag, Step, commit_group
from include.cvmfs.errors import CvmfsError, FormatError
from include.cvmfs.generation import require_unmoved
from include.cvmfs.keys import Signer
from include.cvmfs.lineage import Lineage, Revision
from include.cvmfs.records import Records
from include.cvmfs.vouching import Voucher
from include.gateway.service.commits import CommitOrder, Fence
from include.gateway.service.config import RepositoryConfig, ServiceConfig
from include.storage.errors import StoreError
from include.storage.store import Store

GENERIC = "generic-"


class RevisionMemory(Protocol):
    """Where revisions that were once found are kept over a restart."""

    def revisions(self, repository: str) -> Iterable[Revision]: ...

    def remember_revisions(self, repository: str, revisions: Sequence[Revision]) -> None: ...


@dataclass(slots=True)
class _Opened:
    store: Store
    signer: Signer
    catalogs: CatalogCache
    voucher: Voucher
    lineage: Lineage
    records: Records = field(default_factory=Records)
    turn: threading.Lock = field(default_factory=threading.Lock)


class StoreCommitter:
    """Opens each repository at its first commit, and keeps it open with its catalogs, tags and reflog."""

    def __init__(self, config: ServiceConfig, memory: RevisionMemory | None = None) -> None:
        self._repositories: Mapping[str, RepositoryConfig] = config.repositories
        self._memory = memory
        self._opened: dict[str, _Opened] = {}
        self._opening = threading.Lock()

    def commit(
        self, orders: Sequence[CommitOrder], *, fence: Fence, on_step: Callable[[Step], None]
    ) -> list[int | Exception]:
        name = orders[0].repository
        opened = self._open(name)
        now = time.time()

        def barrier(numbers: Sequence[int]) -> Mapping[int, Exception]:
            # Only those whom no collection passed are asked for their leases: these are marked as about to switch.
            return _passed(opened.store, name, {number: orders[number].generation for number in numbers}) or fence(
                numbers
            )

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

    def reconfigure(self, config: ServiceConfig) -> None:
        """Open every repository anew from this configuration when it is needed next."""
        with self._opening:
            self._repositories = config.repositories
            self._opened = {}

    def _open(self, name: str) -> _Opened:
        with self._opening:
            if name not in self._opened:
                repository = self._repositories[name]
                store = repository.store()
                signer = repository.signer()
                catalogs = CatalogCache(store)
                known = self._memory.revisions(name) if self._memory is not None else ()
                voucher = Voucher(signer, repository.public_keys)
                self._opened[name] = _Opened(store, signer, catalogs, voucher, Lineage(catalogs, known))
            return self._opened[name]


def _passed(store: Store, name: str, generations: Mapping[int, str]) -> dict[int, Exception]:
    """Which changes a collection has passed since they were judged."""
    found: dict[str, Exception | None] = {}
    for token in set(generations.values()):
        try:
            require_unmoved(store, token, fqrn=name)
            found[token] = None
        except (CvmfsError, FormatError, StoreError) as error:
            found[token] = error
    return {number: problem for number, token in generations.items() if (problem := found[token]) is not None}


def _tag(order: CommitOrder, now: float) -> NewTag | None:
    """The tag to make; ``generic-…`` becomes the time of the commit, as the stock receiver has it."""
    if not order.tag_name:
        return None
    name = order.tag_name
    if name.startswith(GENERIC):
        name = GENERIC + datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return NewTag(name, order.tag_description)
