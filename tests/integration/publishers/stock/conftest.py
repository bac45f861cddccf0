"""A repository behind the fake stock gateway, with revisions that its collections take."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.site.site import Site
from include.storage.file import FileStore
from tests.fakes.site import DESTINATIONS, FQRN
from tests.fakes.stocksite import StockSite

HERE = DESTINATIONS[0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StockSite]:
    """Of a repository with three old revisions of one destination, and a current one."""
    store = FileStore(tmp_path / "store" / FQRN)
    site = StockSite(tmp_path, store, store.url)
    site.start()
    site.reserve()
    for number in range(3):
        site.worker().publish(site.prepared(HERE, {"f": b"version %d" % number}), holder="test", now=datetime.now(UTC))
    site.age(days=9)
    yield site
    site.stop()


@pytest.fixture
def on_site(site: StockSite) -> Iterator[Site]:
    made = site.configured()
    yield made
    made.ledger.dispose()
