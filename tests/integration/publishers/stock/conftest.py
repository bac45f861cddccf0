"""A repository behind the fake stock gateway: an empty one, and one with revisions that its collections take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from include.site.site import Site
from tests.fakes.stocksite import StockSite
from tests.site import DESTINATIONS, now


@pytest.fixture
def stock_site(tmp_path: Path) -> Iterator[StockSite]:
    site = StockSite(tmp_path).with_gateway()
    yield site
    site.close()


@pytest.fixture
def reserved(stock_site: StockSite) -> StockSite:
    """The same with destinations."""
    stock_site.reserve()
    return stock_site


@pytest.fixture(scope="module")
def superseded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The objects of a repository with three old revisions of one destination, and a current one."""
    site = StockSite(tmp_path_factory.mktemp("superseded")).with_gateway()
    site.reserve()
    for number in range(3):
        files = {"f": b"version %d" % number}
        site.worker().publish(site.prepared(DESTINATIONS[0], files), holder="test", now=now())
    site.age(days=9)
    site.close()
    return {meta.key: site.store.get(meta.key) for meta in site.store.list()}


@pytest.fixture
def site(tmp_path: Path, superseded: Mapping[str, bytes]) -> Iterator[StockSite]:
    site = StockSite(tmp_path).with_gateway(superseded)
    yield site
    site.close()


@pytest.fixture
def on_site(site: StockSite) -> Site:
    return site.configured()
