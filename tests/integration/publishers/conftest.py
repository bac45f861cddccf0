"""A repository on the S3 server, the real gateway service before it, and publishers as different workers have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.changeset import Changeset
from include.cvmfs.create import create_repository
from include.cvmfs.directory import DirectorySource
from include.cvmfs.keys import Signer, format_public_key, generate_master, generate_repository_key
from include.cvmfs.prepare import Base, prepare
from include.cvmfs.repository import Repository
from include.gateway.client import GatewayClient
from include.gateway.service import GatewayKey, RepositoryConfig, ServiceConfig
from include.gateway.service.server import serve
from include.publishers.native import NativePublisher
from include.storage.store import Store

FQRN = "nights.example.org"
MASTER = generate_master()


@dataclass
class Site:
    """Everything that workers share: the store, the gateway's URL and the public key."""

    folder: Path
    store: Store
    public_url: str
    signer: Signer
    max_lease_time_s: float = 30.0
    url: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _clients: list[GatewayClient] = field(default_factory=list)

    def start(self) -> None:
        key = GatewayKey("worker", "not-a-secret")
        repository = RepositoryConfig(lambda: self.store, lambda: self.signer, (key,))
        config = ServiceConfig(
            self.folder / "state.db", {FQRN: repository}, port=0, max_lease_time_s=self.max_lease_time_s
        )
        ready, self._stop = threading.Event(), threading.Event()

        def listening(url: str) -> None:
            self.url = url
            ready.set()

        self._thread = threading.Thread(
            target=lambda: serve(config, ready=listening, stop=self._stop), daemon=True, name="gateway"
        )
        self._thread.start()
        assert ready.wait(20), "the gateway did not start"

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._stop.set()
        assert self._thread is not None
        self._thread.join(20)

    def client(self, url: str | None = None) -> GatewayClient:
        client = GatewayClient(url or self.url, "worker", "not-a-secret", timeout_s=20)
        self._clients.append(client)
        return client

    def worker(self, url: str | None = None) -> NativePublisher:
        """A publisher as another process would have it: nothing shared but the servers."""
        return NativePublisher(FQRN, self.store, self.client(url), lambda: self.head().manifest)

    def head(self) -> Repository:
        return Repository.open(self.store, fqrn=FQRN, public_keys=[format_public_key(MASTER.public_key())])

    def readers(self) -> Repository:
        """As a client reads: through the public URL, with the public key only."""
        return Repository.open(self.public_url, fqrn=FQRN, public_keys=[format_public_key(MASTER.public_key())])

    def prepared(self, destination: str, files: Mapping[str, bytes], base: Repository | None = None) -> Changeset:
        """A changeset of some files for a destination, derived from the current revision unless told otherwise."""
        tree = self.folder / f"tree-{abs(hash((destination, *files.items())))}"
        for name, content in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content)
        tree.mkdir(exist_ok=True)
        now, head = datetime.now(UTC), base or self.head()
        derived = Base(head.manifest.root, head.manifest.revision)
        return prepare(
            DirectorySource(tree), store=self.store, repository=FQRN, destination=destination, now=now, base=derived
        )


@pytest.fixture
def site(s3_store: Store, public_url: str, tmp_path: Path) -> Iterator[Site]:
    now = datetime.now(UTC)
    signer = generate_repository_key(FQRN, now)
    create_repository(s3_store, FQRN, master=MASTER, signer=signer, now=now)
    site = Site(tmp_path, s3_store, public_url, signer)
    site.start()
    yield site
    site.stop()
