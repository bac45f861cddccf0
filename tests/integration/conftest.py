"""Real servers for integration tests, each started once per session, on free ports of loopback, in its own folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from include.storage import remote
from include.storage.buckets import Role, allow_public_read, ensure_bucket
from include.storage.file import FileStore
from include.storage.kinds import Credentials, Traits
from include.storage.probe import probe
from include.storage.store import Store
from lab.servers.ceph import ObjectStore
from lab.servers.radosgw import RadosgwServer
from lab.servers.s3 import S3Server
from lab.servers.weed import WeedServer
from tests.fakes.faultproxy import FaultProxy

if TYPE_CHECKING:
    from tests.fakes.node import PublisherNode

BUCKET = "nights"
OWNER = Credentials("nightshift", "not-a-secret")
USERS = {role.value: Credentials(role.value, f"{role.value}-not-a-secret") for role in Role if role is not Role.READER}
S3 = ("weed", "radosgw")
S3_SERVERS = [pytest.param(name, marks=pytest.mark.server(name)) for name in S3]
AGAIN_ON_S3 = pytest.mark.parametrize(
    "any_store",
    ["file", *(pytest.param(name, marks=[pytest.mark.server(name), pytest.mark.thorough]) for name in S3)],
    indirect=True,
)
"""For tests whose subject is no store: what differs between stores is tested in ``storage``."""
ON_ONE_S3 = pytest.mark.parametrize(
    "s3_server",
    [
        pytest.param("weed", marks=pytest.mark.server("weed")),
        pytest.param("radosgw", marks=[pytest.mark.server("radosgw"), pytest.mark.thorough]),
    ],
    indirect=True,
)
"""For tests whose subject is what the client does, whatever the server is."""
_numbers = itertools.count()


@pytest.fixture(scope="session")
def weed(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    """SeaweedFS with a bucket ``nights`` that everybody may read, and users without rights."""
    need("weed")
    folder = tmp_path_factory.mktemp("weed")
    with WeedServer(folder / "data", credentials=OWNER, log=folder / "log", users=USERS) as server:
        _public_bucket(server)
        yield server


@pytest.fixture(scope="session")
def radosgw(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RadosgwServer]:
    """Ceph, in memory, with the same bucket and the same users."""
    need("radosgw")
    folder = tmp_path_factory.mktemp("ceph") / "cluster"
    with RadosgwServer(folder, credentials=OWNER, objectstore=ObjectStore.MEMSTORE) as server:
        for name, keys in USERS.items():
            server.add_user(name, keys)
        _public_bucket(server)
        yield server


@pytest.fixture(params=S3_SERVERS)
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each S3 server in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def knowing() -> Callable[[S3Server, Store], Store]:
    """A store that knows what its server keeps, tried once for each server: a gateway before it begins at once."""
    seen: dict[str, Traits] = {}

    def known(server: S3Server, store: Store) -> Store:
        if server.endpoint not in seen:
            seen[server.endpoint] = probe(server.store(BUCKET, "trial"), writers=4)
        return store.with_traits(seen[server.endpoint])

    return known


@pytest.fixture
def s3_prefix() -> str:
    """A folder of the bucket that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def s3_store(s3_server: S3Server, s3_prefix: str) -> Store:
    """An empty store on S3."""
    return s3_server.store(BUCKET, s3_prefix)


@pytest.fixture
def public_url(s3_server: S3Server, s3_prefix: str) -> str:
    """Where everybody reads what ``s3_store`` holds."""
    return s3_server.public_url(BUCKET, s3_prefix)


@pytest.fixture(params=["file", *S3_SERVERS])
def any_store(request: pytest.FixtureRequest, s3_prefix: str, tmp_path: Path) -> Store:
    """An empty store of each kind in turn."""
    if request.param == "file":
        return FileStore(tmp_path / "any-store")
    return request.getfixturevalue(request.param).store(BUCKET, s3_prefix)


@pytest.fixture
def known_store(any_store: Store, request: pytest.FixtureRequest, knowing: Callable[[S3Server, Store], Store]) -> Store:
    """The same, knowing what its server keeps."""
    if isinstance(any_store, FileStore):
        return any_store
    return knowing(request.getfixturevalue(request.node.callspec.params["any_store"]), any_store)


@pytest.fixture
def any_public_url(any_store: Store, request: pytest.FixtureRequest, s3_prefix: str) -> str:
    """Where everybody reads what ``any_store`` holds."""
    if isinstance(any_store, FileStore):
        return any_store.url
    return request.getfixturevalue(request.node.callspec.params["any_store"]).public_url(BUCKET, s3_prefix)


@pytest.fixture(scope="session", autouse=True)
def _short_pauses() -> Iterator[None]:
    """Stores pause for a moment before they try again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "FIRST_PAUSE_S", remote.FIRST_PAUSE_S / 10)
        yield


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the S3 server that does harm when told to."""
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def node(
    tmp_path: Path, request: pytest.FixtureRequest, need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[PublisherNode]:
    """A publisher node behind a stock gateway, or behind what the test's parameter says."""
    need("sshd")
    from include.publishers.server import maintenance
    from tests.fakes.node import PublisherNode

    monkeypatch.setattr(maintenance, "_PAUSE_S", 0.05)
    made = PublisherNode(tmp_path, getattr(request, "param", "stock"))
    made.start()
    yield made
    made.stop()


def _public_bucket(server: S3Server) -> None:
    ensure_bucket(f"s3://{BUCKET}", server.credentials, server.options())
    allow_public_read(f"s3://{BUCKET}", server.credentials, server.options())
