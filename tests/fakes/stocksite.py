"""A repository in a folder behind the fake stock gateway, and publishers before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from include.publishers.stock import StockPublisher
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, SIGNER, Site
from tests.fakes.stockgateway import StockGateway
from tests.fakes.stockreceiver import Receiver


@dataclass
class StockSite(Site):
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

    def worker(self, url: str | None = None, **settings: Any) -> StockPublisher:
        """As another process would have it; it waits for nothing before it takes a new lease."""
        client = self.client(url)
        return StockPublisher(
            FQRN,
            self.store,
            client,
            lambda: self.head().manifest,
            is_stock=lambda: not client.judges_bases(),
            pause=self.pauses.append,
            **settings,
        )
