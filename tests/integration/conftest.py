"""Real servers for integration tests, each started once per session, on free ports of loopback, in its own folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from include.lab.servers.weed import WeedServer
from include.storage.buckets import allow_public_read, ensure_bucket
from include.storage.options import Credentials
from include.storage.store import Store
from tests.fakes.faultproxy import FaultProxy

BUCKET = "nights"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def weed(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    """An S3 server with a bucket ``nights`` that everybody may read."""
    need("weed")
    folder = tmp_path_factory.mktemp("weed")
    with WeedServer(
        folder / "data", credentials=Credentials("nightshift", "not-a-secret"), log=folder / "log"
    ) as server:
        ensure_bucket(f"s3://{BUCKET}", server.credentials, server.options())
        allow_public_read(f"s3://{BUCKET}", server.credentials, server.options())
        yield server


@pytest.fixture
def s3_prefix() -> str:
    """A folder of the bucket that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def s3_store(weed: WeedServer, s3_prefix: str) -> Store:
    """An empty store on S3."""
    return weed.store(BUCKET, s3_prefix)


@pytest.fixture
def public_url(weed: WeedServer, s3_prefix: str) -> str:
    """Where everybody reads what ``s3_store`` holds."""
    return weed.public_url(BUCKET, s3_prefix)


@pytest.fixture
def weed_proxy(weed: WeedServer) -> Iterator[FaultProxy]:
    """A proxy before the S3 server that does harm when told to."""
    with FaultProxy(weed.endpoint) as proxy:
        yield proxy
