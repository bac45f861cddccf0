"""A repository on each kind of store, the real gateway service, and publishers as different workers have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from include.cvmfs.format.keys import save_signer
from include.gateway.service.config import AcceptedKey
from include.storage.file import FileStore
from include.storage.store import Store
from tests.fakes.apart import one_repository, running_gateway
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, SIGNER, LiveSite
from tests.fakes.stocksite import StockSite


@dataclass
class ThreadSite(LiveSite):
    """A site whose gateway is a thread."""

    max_lease_time_s: float = 30.0
    _running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        if not (self.folder / "keys").exists():
            save_signer(self.folder / "keys", FQRN, SIGNER)
        key, lease_s = AcceptedKey(KEY_ID, SECRET), self.max_lease_time_s
        read_config = partial(one_repository, self.folder, FQRN, self.store, key, max_lease_time_s=lease_s)
        self.url = self._running.enter_context(running_gateway(read_config))

    def stop(self) -> None:
        self.close()
        self._running.close()


@pytest.fixture
def site(known_store: Store, any_public_url: str, tmp_path: Path) -> Iterator[ThreadSite]:
    site = ThreadSite(tmp_path, known_store, any_public_url)
    site.create()
    site.start()
    yield site
    site.stop()


@pytest.fixture
def stock_site(file_store: FileStore, tmp_path: Path) -> Iterator[StockSite]:
    """An empty repository behind the fake stock gateway."""
    site = StockSite(tmp_path, file_store, file_store.url)
    site.start()
    yield site
    site.stop()


@pytest.fixture
def reserved(stock_site: StockSite) -> StockSite:
    """The same with destinations."""
    stock_site.reserve()
    return stock_site
