"""The real service on a free port of loopback, in a thread, with a committer that the test can hold up or make fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.client.client import GatewayClient
from include.gateway.service.clock import Clock
from include.gateway.service.commits.queue import OnPoint, pass_by
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.serving import ReadConfig
from tests.fakes.gateway_service import FakeCommitter
from tests.site import RunningGateway

REPOSITORY = "test.example.org"
OLD, NEW, NEWER = (ObjectHash.parse(digit * 40) for digit in "123")
LEASE_S = 100.0
"""Longer than any test takes: leases end when a test moves the clock."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Schemathesis names a test the same for each call of the service; of one name, a parallel runner runs one."""
    label = getattr(item, "operation_label", None)
    if label is not None and not item.nodeid.endswith("]"):
        item._id = item._id.with_params(label)


def _never() -> None:
    raise AssertionError("the fake committer opens nothing")


@dataclass
class Counting:
    """A receiver that merges nothing."""

    fqrn: str = REPOSITORY
    revision: int = 0

    def commit(self, *_: object) -> int:
        self.revision += 1
        return self.revision


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
        **changes: object,
    ) -> RunningGateway:
        read_config = read_config or partial(service_config, folder or tmp_path, **changes)
        running.append(RunningGateway(read_config, committer or FakeCommitter(), clock, on_point).start())
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
