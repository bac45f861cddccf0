"""A repository on each kind of store, the real gateway service, and publishers as different workers have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.storage.file import FileStore
from include.storage.store import Store
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, SIGNER, LiveSite
from tests.fakes.stocksite import StockSite


@dataclass
class ThreadSite(LiveSite):
    """A site whose gateway is a thread."""

    max_lease_time_s: float = 30.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        repository = RepositoryConfig(lambda: self.store, lambda: SIGNER, (AcceptedKey(KEY_ID, SECRET),))
        config = ServiceConfig(
            self.folder / "state.db", {FQRN: repository}, port=0, max_lease_time_s=self.max_lease_time_s
        )
        ready, self._stop = threading.Event(), threading.Event()

        def listening(url: str) -> None:
            self.url = url
            ready.set()

        self._thread = threading.Thread(
            target=lambda: serve(config, ready=listening, stop=self._stop), daemon=True, name="gateway"
        )
        self._thread.start()
        assert ready.wait(120), "the gateway did not start"

    def stop(self) -> None:
        self.close()
        self._stop.set()
        assert self._thread is not None
        self._thread.join(20)


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
