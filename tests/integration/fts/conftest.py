"""An FTS server over HTTP, and a proxy before it that makes failures happen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from include.fts.client import FtsClient
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.ftsserver import FtsServer


@pytest.fixture
def server() -> Iterator[FtsServer]:
    with FtsServer() as running:
        yield running


@pytest.fixture
def proxy(server: FtsServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.url) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[FtsClient]:
    """It repeats without a pause."""
    with FtsClient(proxy.url, pause=lambda _: None, timeout_s=20) as opened:
        yield opened
