"""A repository in a folder behind the fake stock gateway, and publishers before it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.objects import compress
from include.publishers.native import NativePublisher
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.store import Store
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import DESTINATIONS, FQRN, PUBLIC_KEY, SIGNER, LiveSite
from tests.fakes.stockgateway import StockGateway
from tests.fakes.stockreceiver import Receiver

ADMIN = "adminkey"


@dataclass
class StockSite(LiveSite):
    """``gateway`` runs from ``start`` to ``stop``."""

    gateway: StockGateway = field(init=False)
    pauses: list[float] = field(default_factory=list)

    def start(self, **settings: Any) -> None:
        self.create()
        keys = {KEY_ID: SECRET, ADMIN: SECRET}
        self.gateway = StockGateway(Receiver(self.store, FQRN, SIGNER), keys, {ADMIN}, **settings).__enter__()
        self.url = self.gateway.url

    def stop(self) -> None:
        self.close()
        self.gateway.__exit__(None, None, None)

    def worker(self, url: str | None = None, *, store: Store | None = None, **settings: Any) -> NativePublisher:
        """As another process would have it; it waits for nothing before it takes a new lease."""
        publisher = super().worker(url, store=store, **settings)
        publisher.pause = self.pauses.append
        return publisher

    def orphan(self, content: bytes = b"of a publication that failed", days: float = 9) -> str:
        """An object that nothing names, stored so long ago; its key."""
        data = compress(content)
        key = hash_bytes(data).key
        self.store.put(key, data)
        then = time.time() - timedelta(days=days).total_seconds()
        os.utime(self.folder / "store" / FQRN / key, (then, then))
        return key

    def objects(self) -> set[str]:
        """The keys of all data objects."""
        return {one.key for one in self.store.list("data")}

    def assert_open(self) -> None:
        """Nothing is leased or disabled, readers find everything, and the next publication works."""
        assert self.gateway.held() == []
        assert self.gateway.enabled
        self.assert_sound()
        tree = self.prepared(DESTINATIONS[1], {"after": os.urandom(9)})
        self.worker().publish(tree, holder="test", now=datetime.now(UTC))

    def configured(self, *, admin: str = ADMIN, **repository: Any) -> Site:
        """The site of the configuration, its store the folder that the repository is in."""
        (self.folder / "repository.pub").write_bytes(PUBLIC_KEY)
        store = self.store.url.removesuffix(f"/{FQRN}")
        settings = {
            "ledger": f"sqlite:///{self.folder}/ledger.db",
            "paths": {"var": f"{self.folder}/var"},
            "stores": {"cvmfs": {"url": store}},
            "repositories": {
                FQRN: {
                    "store": "cvmfs", "public_url": self.store.url, "public_key": f"{self.folder}/repository.pub",
                    "gateway": "gw", "gateway_admin": "gw_admin", **repository,
                }
            },
        }  # fmt: skip
        address = {"host": self.url, "password": SECRET}
        keys = {"GW": {**address, "login": KEY_ID}, "GW_ADMIN": {**address, "login": admin}}
        found = {f"AIRFLOW_CONN_{name}": json.dumps(key) for name, key in keys.items()}
        return Site(SiteSettings.model_validate(settings), EnvSecrets(found))


def ours(report: Any) -> CollectionReport:
    """The report of a collection that took place."""
    assert isinstance(report, CollectionReport)
    return report
