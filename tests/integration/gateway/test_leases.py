"""Leases through the client, against the real service."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.cvmfs.coordination import freeze as freezes
from include.cvmfs.coordination.freeze import Freeze
from include.gateway import errors
from include.gateway.client.client import GatewayClient
from include.gateway.errors import RepositoryDisabled
from include.gateway.protocol import authorization
from include.gateway.service.config import AcceptedKey, RepositoryConfig
from include.gateway.service.freezes import FRESH_S
from include.gateway.service.http.server import create_app
from include.storage.file import FileStore
from tests.fakes.gateway_service import FakeCommitter, ManualClock
from tests.fakes.refused import refused
from tests.integration.gateway.conftest import LEASE_S, REPOSITORY, StartGateway, _never, service_config
from tests.site import RunningGateway


def test_a_lease_is_listed_with_its_holder_until_it_is_dropped(client: GatewayClient) -> None:
    lease = client.acquire(REPOSITORY, "/arch/x86", hostname="run/task/1")
    [listed] = client.leases()
    assert (listed.repository, listed.path, listed.key_id, listed.hostname) == (
        REPOSITORY, "/arch/x86", "rootkey", "run/task/1",
    )  # fmt: skip
    assert timedelta(0) < listed.expires - datetime.now(UTC) <= timedelta(seconds=LEASE_S)
    assert lease.expires_monotonic is not None
    assert 0 < lease.expires_monotonic - time.monotonic() <= LEASE_S
    assert client.drop(lease) is True
    assert client.drop(lease) is False
    assert client.leases() == []


def test_an_admin_ends_all_leases_below_a_path(gateway: object, client: GatewayClient) -> None:
    for path in ("/a/b", "/a/c d/é", "/ab"):
        client.acquire(REPOSITORY, path, hostname="h")
    with pytest.raises(errors.AdminKeyNeeded):
        client.drop_by_path(REPOSITORY, "/a")
    for gone, left in (("/a/c d", ["/a/b", "/ab"]), ("/a", ["/ab"])):
        gateway.client("adminkey").drop_by_path(REPOSITORY, gone)  # type: ignore[attr-defined]
        assert [lease.path for lease in client.leases()] == left


def test_the_whole_repository_can_be_leased(client: GatewayClient) -> None:
    for path in ("", "/"):
        with client.lease(REPOSITORY, path, hostname="h") as lease:
            assert lease.full_path == f"{REPOSITORY}/"
            assert [held.path for held in client.leases()] == [""]


def test_a_busy_path_names_its_holder_and_the_time_left(client: GatewayClient) -> None:
    client.acquire(REPOSITORY, "/a/b", hostname="night-1/publish/try-1")
    with refused(errors.PathBusy, repository=REPOSITORY, path="/a", key_id="rootkey", own=False) as caught:
        client.acquire(REPOSITORY, "/a", hostname="night-2")
    busy = caught.value
    assert 0 < busy.time_remaining_s <= LEASE_S
    assert busy.holder is not None
    assert (busy.holder.full_path, busy.holder.hostname) == (f"{REPOSITORY}/a/b", "night-1/publish/try-1")
    assert busy.holder.key_id == "rootkey"
    assert busy.retryable


def test_the_context_manager_drops_however_the_block_ends(client: GatewayClient) -> None:
    with pytest.raises(KeyboardInterrupt), client.lease(REPOSITORY, "/a", hostname="h"):
        raise KeyboardInterrupt
    with client.lease(REPOSITORY, "/a", hostname="h") as lease:
        client.drop(lease)
    assert client.leases() == []


@pytest.mark.parametrize(
    ("key_id", "secret", "repository", "path", "kind"),
    [
        ("rootkey", "wrong", REPOSITORY, "/a", errors.BAD_SIGNATURE),
        ("nokey", "x", REPOSITORY, "/a", errors.BAD_SIGNATURE),
        ("plainkey", None, REPOSITORY, "/a", errors.KEY_NOT_ALLOWED),
        ("adminkey", None, REPOSITORY, "/a", errors.KEY_NOT_ALLOWED),
        ("subkey", None, REPOSITORY, "/arch", errors.PATH_NOT_ALLOWED),
        ("subkey", None, REPOSITORY, "/arch/x86_64", errors.PATH_NOT_ALLOWED),
        ("rootkey", None, "no.such.org", "/a", errors.UNKNOWN_REPOSITORY),
    ],
)
def test_a_refusal_is_a_typed_error_that_names_path_and_key(
    gateway: object, key_id: str, secret: str | None, repository: str, path: str, kind: errors.GatewayErrorKind
) -> None:
    client = gateway.client(key_id, secret)  # type: ignore[attr-defined]
    with refused(kind, repository=repository, path=path, key_id=key_id) as caught:
        client.acquire(repository, path, hostname="h")
    assert f"{repository}{path}" in str(caught.value)
    assert kind.hint in str(caught.value)
    assert caught.value.trace in str(caught.value)
    assert not kind.retryable


def test_a_restricted_key_leases_at_and_below_its_path(gateway: object) -> None:
    client = gateway.client("subkey")  # type: ignore[attr-defined]
    for path in ("/arch/x86", "/arch/x86/deep"):
        with client.lease(REPOSITORY, path, hostname="h"):
            pass


@pytest.mark.parametrize("path", ["a", "/a/../b", "/a//b", "/a\0b", "/" + "x" * 300])
def test_a_malformed_path_is_refused_before_it_is_sent(client: GatewayClient, path: str) -> None:
    with pytest.raises(errors.BadLeasePath):
        client.acquire(REPOSITORY, path, hostname="h")


def test_another_key_cannot_drop_a_lease_but_an_admin_can(gateway: object, client: GatewayClient) -> None:
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    for key_id in ("stranger", "subkey", "plainkey"):
        assert gateway.client(key_id).drop(lease) is False  # type: ignore[attr-defined]
    assert len(client.leases()) == 1
    assert gateway.client("adminkey").drop(lease) is True  # type: ignore[attr-defined]


def test_repositories_and_their_keys_are_listed(client: GatewayClient) -> None:
    plain, test = client.repositories()
    assert (plain.name, dict(plain.keys), plain.enabled) == ("plain.example.org", {"plainkey": "/"}, True)
    assert dict(test.keys) == {"rootkey": "/", "subkey": "/arch/x86"}
    client.ping()


def test_no_token_and_no_secret_is_shown_anywhere(
    gateway: object, client: GatewayClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        lease = client.acquire(REPOSITORY, "/a", hostname="h")
        client.renew(lease)
        client.drop(lease)
        dead = GatewayClient("http://127.0.0.1:9", "rootkey", "root-secret", retries=0)
        with pytest.raises(errors.GatewayUnreachable) as caught:
            dead.drop(lease)
    shown = caplog.text + repr(lease) + str(lease) + repr(client) + repr(caught.value) + str(caught.value)
    shown += repr(gateway.config)  # type: ignore[attr-defined]
    assert "leases/<token>" in caplog.text
    assert lease.token[:52] not in shown
    assert "root-secret" not in shown
    assert caught.value.__context__ is None


def test_a_key_is_tried_by_a_call_that_changes_nothing(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    client = gateway.client()
    lease = client.acquire(REPOSITORY, "/a", hostname="h")
    client.check_key()
    assert [one.path for one in client.leases()] == ["/a"]
    with refused(errors.BAD_SIGNATURE, key_id="rootkey"):
        gateway.client(secret="wrong").check_key()
    client.drop(lease)


def test_who_hung_up_meanwhile_is_given_no_lease(tmp_path: Path) -> None:
    app = create_app(lambda: service_config(tmp_path), committer=FakeCommitter())
    body = json.dumps({"path": f"{REPOSITORY}/a", "api_version": "2", "hostname": "h"}).encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/api/v1/leases", "raw_path": b"/api/v1/leases", "query_string": b"", "root_path": "",
        "headers": [(b"authorization", authorization("rootkey", "root-secret", body).encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 4929),
    }  # fmt: skip
    arriving = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, object]:
        return next(arriving, {"type": "http.disconnect"})

    async def send(message: object) -> None:
        raise AssertionError(f"nobody is there to be sent {message}")

    asyncio.run(app(scope, receive, send))
    assert app.state.serving.table.listed() == []
    app.state.serving.table.close()


# -- a frozen repository gives out no new lease; what was granted before is used to its end

OTHER = "plain.example.org"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def freezable(start_gateway: StartGateway, tmp_path: Path, clock: ManualClock) -> RunningGateway:
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


def test_no_lease_is_given_out_while_it_is_frozen_the_answer_says_why_and_those_granted_before_are_kept(
    freezable: RunningGateway, tmp_path: Path, clock: ManualClock
) -> None:
    client = freezable.client()
    granted = client.acquire(REPOSITORY, "/before", hostname="h")
    store = frozen(tmp_path, now(clock))
    client.drop(client.acquire(REPOSITORY, "/known", hostname="h"))  # the store is asked once in a while
    clock.advance(FRESH_S)
    with pytest.raises(RepositoryDisabled, match=r"frozen since .* by operator@host.*disks are moved") as refused:
        client.acquire(REPOSITORY, "/a", hostname="h")
    assert refused.value.reason == "repo_disabled"
    assert refused.value.repository == REPOSITORY
    client.drop(client.acquire(OTHER, "/a", hostname="h"))
    client.renew(granted)
    assert client.drop(granted)
    freezes.thaw(store, now(clock))
    clock.advance(FRESH_S)
    client.drop(client.acquire(REPOSITORY, "/b", hostname="h"))


def test_a_freeze_with_an_end_ends_by_itself(freezable: RunningGateway, tmp_path: Path, clock: ManualClock) -> None:
    client = freezable.client()
    frozen(tmp_path, now(clock), seconds=60)
    with pytest.raises(RepositoryDisabled):
        client.acquire(REPOSITORY, "/a", hostname="h")
    clock.advance(60)
    client.drop(client.acquire(REPOSITORY, "/b", hostname="h"))


def test_a_document_that_cannot_be_read_leaves_what_was_known(freezable: RunningGateway, tmp_path: Path) -> None:
    FileStore(tmp_path / REPOSITORY).put(freezes.KEY, b"no freeze")
    client = freezable.client()
    client.drop(client.acquire(REPOSITORY, "/a", hostname="h"))
