"""A frozen repository gives out no new lease, and says why; what was granted before is used to its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.cvmfs.coordination import freeze as freezes
from include.cvmfs.coordination.freeze import Freeze
from include.gateway.errors import RepositoryDisabled
from include.gateway.service.config import AcceptedKey, RepositoryConfig
from include.gateway.service.freezes import FRESH_S
from include.storage.file import FileStore
from tests.fakes.gateway_service import ManualClock
from tests.integration.gateway.conftest import REPOSITORY, RunningGateway, StartGateway, _never

OTHER = "plain.example.org"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gateway(start_gateway: StartGateway, tmp_path: Path, clock: ManualClock) -> RunningGateway:
    keys = (AcceptedKey("rootkey", "root-secret"),)
    stores = {name: FileStore(tmp_path / name) for name in (REPOSITORY, OTHER)}
    return start_gateway(
        clock=clock,
        repositories={
            name: RepositoryConfig(lambda store=store: store, _never, keys) for name, store in stores.items()
        },
    )


def now(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)


def frozen(folder: Path, since: datetime, **lasts: float) -> FileStore:
    store = FileStore(folder / REPOSITORY)
    until = since + timedelta(**lasts) if lasts else None
    freezes.freeze(store, Freeze("one", "disks are moved", "operator@host", since, until))
    return store


def test_no_lease_is_given_out_while_it_is_frozen_and_the_answer_says_why(
    gateway: RunningGateway, tmp_path: Path, clock: ManualClock
) -> None:
    client = gateway.client()
    store = frozen(tmp_path, now(clock))
    with pytest.raises(RepositoryDisabled, match=r"frozen since .* by operator@host.*disks are moved") as refused:
        client.acquire(REPOSITORY, "/a", hostname="h")
    assert refused.value.reason == "repo_disabled"
    assert refused.value.repository == REPOSITORY
    client.drop(client.acquire(OTHER, "/a", hostname="h"))
    freezes.thaw(store, now(clock))
    clock.advance(FRESH_S)
    client.drop(client.acquire(REPOSITORY, "/b", hostname="h"))


def test_a_lease_that_was_granted_before_is_kept_and_given_back(
    gateway: RunningGateway, tmp_path: Path, clock: ManualClock
) -> None:
    client = gateway.client()
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    frozen(tmp_path, now(clock))
    clock.advance(FRESH_S)
    with pytest.raises(RepositoryDisabled):
        client.acquire(REPOSITORY, "/b", hostname="h")
    client.renew(lease)
    assert client.drop(lease)


def test_many_acquires_at_once_are_one_read_of_the_store(
    gateway: RunningGateway, tmp_path: Path, clock: ManualClock
) -> None:
    client = gateway.client()
    client.drop(client.acquire(REPOSITORY, "/a", hostname="h"))
    frozen(tmp_path, now(clock))
    clock.advance(FRESH_S / 2)
    client.drop(client.acquire(REPOSITORY, "/a", hostname="h"))


def test_a_freeze_with_an_end_ends_without_anybody(gateway: RunningGateway, tmp_path: Path, clock: ManualClock) -> None:
    client = gateway.client()
    frozen(tmp_path, now(clock), seconds=60)
    with pytest.raises(RepositoryDisabled):
        client.acquire(REPOSITORY, "/a", hostname="h")
    clock.advance(60)
    client.drop(client.acquire(REPOSITORY, "/b", hostname="h"))


def test_a_document_that_cannot_be_read_leaves_what_was_known(gateway: RunningGateway, tmp_path: Path) -> None:
    FileStore(tmp_path / REPOSITORY).put(freezes.KEY, b"no freeze")
    client = gateway.client()
    client.drop(client.acquire(REPOSITORY, "/a", hostname="h"))
