"""The real service on a free port of loopback, in a thread, with a committer that the test can hold up or make fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from include.gateway.client.client import GatewayClient
from include.gateway.service.clock import Clock
from include.gateway.service.commits.queue import OnPoint, pass_by
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.gateway.service.http.serving import ReadConfig
from tests.fakes.gateway_service import FakeCommitter

REPOSITORY = "test.example.org"
LEASE_S = 100.0
"""Longer than any test takes: leases end when a test moves the clock."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Schemathesis names a test the same for each call of the service; of one name, a parallel runner runs one."""
    label = getattr(item, "operation_label", None)
    if label is not None and not item.nodeid.endswith("]"):
        item._id = item._id.with_params(label)


def _never() -> None:
    raise AssertionError("the fake committer opens nothing")


def service_config(folder: Path, **changes: object) -> ServiceConfig:
    """Two repositories; a key for all, one for a subpath, an administrator's and a stranger's."""
    settings: dict[str, object] = {
        "state": folder / "state.db",
        "port": 0,
        "max_lease_time_s": LEASE_S,
        "repositories": {
            REPOSITORY: RepositoryConfig(
                _never,
                _never,
                (AcceptedKey("rootkey", "root-secret"), AcceptedKey("subkey", "sub-secret", "/arch/x86")),
            ),
            "plain.example.org": RepositoryConfig(_never, _never, (AcceptedKey("plainkey", "plain-secret"),)),
        },
        "keys": (AcceptedKey("adminkey", "admin-secret", admin=True), AcceptedKey("stranger", "strange-secret")),
    }
    return ServiceConfig(**{**settings, **changes})  # type: ignore[arg-type]


@dataclass
class RunningGateway:
    """A service that runs until ``stop``."""

    read_config: ReadConfig
    committer: FakeCommitter | None
    clock: Clock | None = None
    on_point: OnPoint = pass_by
    url: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _clients: list[GatewayClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = self.read_config()

    def start(self) -> RunningGateway:
        ready = threading.Event()

        def listening(url: str) -> None:
            self.url = url
            ready.set()

        def run() -> None:
            serve(
                self.read_config, committer=self.committer, clock=self.clock, ready=listening, stop=self._stop,
                on_point=self.on_point,
            )  # fmt: skip

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert ready.wait(120), "the gateway did not start"
        return self

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(20)
            assert not self._thread.is_alive(), "the gateway did not stop"

    def client(self, key_id: str = "rootkey", secret: str | None = None, **settings: object) -> GatewayClient:
        secrets = {key.id: key.secret for key in self.config.all_keys()}
        client = GatewayClient(self.url, key_id, secret or secrets[key_id], timeout_s=20, **settings)  # type: ignore[arg-type]
        self._clients.append(client)
        return client


StartGateway = Callable[..., RunningGateway]


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """Starts services; all are stopped at the end of the test."""
    running: list[RunningGateway] = []

    def start(
        *,
        committer: FakeCommitter | None = None,
        clock: Clock | None = None,
        folder: Path | None = None,
        on_point: OnPoint = pass_by,
        read_config: ReadConfig | None = None,
        real: bool = False,
        **changes: object,
    ) -> RunningGateway:
        read_config = read_config or partial(service_config, folder or tmp_path, **changes)
        fake = None if real else committer or FakeCommitter()
        running.append(RunningGateway(read_config, fake, clock, on_point).start())
        return running[-1]

    yield start
    for gateway in running:
        gateway.stop()


@pytest.fixture(scope="module")
def start_module_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """The same for a whole module."""
    running: list[RunningGateway] = []

    def start(**changes: object) -> RunningGateway:
        read_config = partial(service_config, tmp_path_factory.mktemp("gateway"), **changes)
        running.append(RunningGateway(read_config, FakeCommitter()).start())
        return running[-1]

    yield start
    for gateway in running:
        gateway.stop()


@pytest.fixture
def gateway(start_gateway: StartGateway) -> RunningGateway:
    return start_gateway()


@pytest.fixture
def client(gateway: RunningGateway) -> GatewayClient:
    return gateway.client()
