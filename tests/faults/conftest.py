"""A site of processes on a real S3 server, and on every way between them a proxy that stops them where a test wants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from include.storage.buckets import allow_public_read, ensure_bucket
from include.storage.file import FileStore
from include.storage.kinds import Credentials
from include.storage.probe import probe
from lab.ports import free_port
from lab.servers.weed import WeedServer
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.site import ProcessSite

BUCKET = "faults"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def weed(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    """An S3 server with a bucket that everybody may read."""
    need("weed")
    folder = tmp_path_factory.mktemp("weed")
    with WeedServer(
        folder / "data", credentials=Credentials("nightshift", "not-a-secret"), log=folder / "log"
    ) as server:
        ensure_bucket(f"s3://{BUCKET}", server.credentials, server.options())
        allow_public_read(f"s3://{BUCKET}", server.credentials, server.options())
        yield server


@pytest.fixture(scope="session")
def traits(weed: WeedServer) -> Mapping[str, object]:
    """What the server keeps, for gateways that need not try it at each of their starts."""
    return asdict(probe(weed.store(BUCKET, "probe")))


@pytest.fixture
def behind(weed: WeedServer) -> Iterator[FaultProxy]:
    """Between the gateway and the store."""
    with FaultProxy(weed.endpoint) as proxy:
        yield proxy


@pytest.fixture
def to_store(weed: WeedServer) -> Iterator[FaultProxy]:
    """Between publishers and the store."""
    with FaultProxy(weed.endpoint) as proxy:
        yield proxy


@pytest.fixture
def to_gateway() -> Iterator[FaultProxy]:
    """Between publishers and the gateway."""
    with FaultProxy(f"http://127.0.0.1:{free_port()}") as proxy:
        yield proxy


@pytest.fixture(scope="session")
def reserved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The objects of a repository with a build reserved in it, at revision 1, for others to begin with."""
    folder = tmp_path_factory.mktemp("reserved")
    store = FileStore(folder / "store")
    site = ProcessSite(folder, store, store.url, storage={"store": store.url})
    site.create()
    site.start_gateway()
    site.reserve()
    site.close()
    return {found.key: store.get(found.key) for found in store.list() if not found.key.startswith(".nightshift/")}


@pytest.fixture
def site(
    weed: WeedServer,
    tmp_path: Path,
    reserved: Mapping[str, bytes],
    traits: Mapping[str, object],
    behind: FaultProxy,
    to_store: FaultProxy,
    to_gateway: FaultProxy,
) -> Iterator[ProcessSite]:
    """A repository with a build reserved in it, at revision 1; its gateway runs."""
    prefix = f"site-{next(_numbers)}"
    site = ProcessSite(
        tmp_path,
        weed.store(BUCKET, prefix),
        weed.public_url(BUCKET, prefix),
        storage={
            "store": f"s3://{BUCKET}/{prefix}",
            "endpoint": weed.endpoint,
            "credentials": [weed.credentials.access_key, weed.credentials.secret_key],
            "traits": traits,
        },
        behind=behind.url,
        to_store=to_store.url,
        to_gateway=to_gateway.url,
        port=to_gateway.upstream[1],
    )
    site.create(reserved)
    site.start_gateway()
    yield site
    for proxy in (behind, to_store, to_gateway):
        proxy.clear()
    site.close()
