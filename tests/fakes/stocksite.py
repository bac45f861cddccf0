"""A repository in a folder behind the fake stock gateway, and publishers before it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from include.publishers.native import NativePublisher
from include.site.site import Site
from include.storage.store import Store
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.stockgateway import StockGateway
from tests.fakes.stockreceiver import Receiver
from tests.site import DESTINATIONS, FQRN, SIGNER, Deployment, connection, now

ADMIN = "adminkey"


@dataclass
class StockSite(Deployment):
    """Its gateway is the fake stock one; its settings name an administrator of it, see ``configured``."""

    gateway: StockGateway = field(init=False)
    pauses: list[float] = field(default_factory=list)

    def with_gateway(self, objects: Mapping[str, bytes] | None = None) -> Self:
        self.create(objects)
        keys = {KEY_ID: SECRET, ADMIN: SECRET}
        self.gateway = StockGateway(Receiver(self.store, FQRN, SIGNER), keys, {ADMIN}).__enter__()
        self.reached_at(self.gateway.url)
        return self

    def stop(self) -> None:
        super().stop()
        self.gateway.__exit__(None, None, None)

    def worker(self, url: str | None = None, *, store: Store | None = None, **settings: Any) -> NativePublisher:
        """As another process would have it; it waits for nothing before it takes a new lease."""
        publisher = super().worker(url, store=store, **settings)
        publisher.pause = self.pauses.append
        return publisher

    def objects(self) -> set[str]:
        """The keys of all data objects."""
        return {one.key for one in self.store.list("data")}

    def assert_open(self) -> None:
        """Nothing is leased or disabled, readers find everything, and the next publication works."""
        assert self.gateway.held() == []
        assert self.gateway.enabled
        self.assert_sound()
        tree = self.prepared(DESTINATIONS[1], {"after": os.urandom(9)})
        self.worker().publish(tree, holder="test", now=now())

    def configured(self, *, admin: str = ADMIN, **repository: Any) -> Site:
        """The site of the configuration, where the gateway's administrator has this key."""
        self.environment["AIRFLOW_CONN_GW_ADMIN"] = connection(admin, SECRET, host=self.url)
        return self.with_options(gateway_admin="gw_admin", **repository).site
