"""Commits into the repositories' stores by the one switch that everybody uses, ``include.cvmfs.commit``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from include.cvmfs.catalogs import CatalogCache
from include.cvmfs.commit import NewTag, commit_change
from include.cvmfs.generation import require_unmoved
from include.cvmfs.keys import Signer
from include.cvmfs.vouching import Voucher
from include.gateway.service.commits import CommitOrder
from include.gateway.service.config import RepositoryConfig, ServiceConfig
from include.storage.store import Store

GENERIC = "generic-"


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    signer: Signer
    catalogs: CatalogCache
    voucher: Voucher


class StoreCommitter:
    """Opens each repository at its first commit, and keeps it open with its catalogs."""

    def __init__(self, config: ServiceConfig) -> None:
        self._repositories: Mapping[str, RepositoryConfig] = config.repositories
        self._opened: dict[str, _Opened] = {}
        self._opening = threading.Lock()

    def commit(self, order: CommitOrder, *, before_switch: Callable[[], None]) -> int:
        opened = self._open(order.repository)
        now = time.time()

        def barrier() -> None:
            require_unmoved(opened.store, order.generation, fqrn=order.repository)
            before_switch()

        head = commit_change(
            opened.store,
            fqrn=order.repository,
            signer=opened.signer,
            lease_path=order.lease_path,
            old_root=order.old_root,
            new_root=order.new_root,
            tag=_tag(order, now),
            now=int(now),
            voucher=opened.voucher,
            catalogs=opened.catalogs,
            before_switch=barrier,
        )
        return head.manifest.revision

    def _open(self, name: str) -> _Opened:
        with self._opening:
            if name not in self._opened:
                repository = self._repositories[name]
                store = repository.store()
                signer = repository.signer()
                voucher = Voucher(signer, repository.public_keys)
                self._opened[name] = _Opened(store, signer, CatalogCache(store), voucher)
            return self._opened[name]


def _tag(order: CommitOrder, now: float) -> NewTag | None:
    """The tag to make; ``generic-…`` becomes the time of the commit, as the stock receiver has it."""
    if not order.tag_name:
        return None
    name = order.tag_name
    if name.startswith(GENERIC):
        name = GENERIC + datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return NewTag(name, order.tag_description)
