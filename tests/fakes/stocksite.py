"""A repository in a folder behind the fake stock gateway, and publishers before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from include.publishers.native import NativePublisher
from include.storage.store import Store
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, SIGNER, LiveSite
from tests.fakes.stockgateway import StockGateway
from tests.fakes.stockreceiver import Receiver


@dataclass
class StockSite(LiveSite):
    """``gateway`` runs from ``start`` to ``stop``."""

    gateway: StockGateway = field(init=False)
    pauses: list[float] = field(default_factory=list)

    def start(self, **settings: Any) -> None:
        self.create()
        self.gateway = StockGateway(Receiver(self.store, FQRN, SIGNER), {KEY_ID: SECRET}, **settings).__enter__()
        self.url = self.gateway.url

    def stop(self) -> None:
        self.close()
        self.gateway.__exit__(None, None, None)

    def worker(self, url: str | None = None, *, store: Store | None = None, **settings: Any) -> NativePublisher:
        """As another process would have it; it waits for nothing before it takes a new lease."""
        publisher = super().worker(url, store=store, **settings)
        publisher.pause = self.pauses.append
        return publisher
