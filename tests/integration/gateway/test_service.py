"""What the service does beside leases and commits: it is watched, changed while it runs, limited, and replaced."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import requests

from include.cvmfs.commit.commit import REFLOG_KEY, SwitchStep, read_head
from include.cvmfs.commit.create import create_repository
from include.cvmfs.format.keys import load_signer, save_signer
from include.cvmfs.revision.repository import Repository
from include.gateway import errors
from include.gateway.client.client import GatewayClient, open_gateway
from include.gateway.errors import GatewayUnreachable
from include.gateway.protocol import authorization, sign_body
from include.gateway.service.commits.committer import StoreCommitter
from include.gateway.service.config import AcceptedKey, ConfigError, Rate, RateLimits, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.settings.secrets import ConnectionSecrets
from include.storage.open import open_store
from tests.fakes.apart import change
from tests.fakes.certificates import Authority
from tests.fakes.commits import commit_change
from tests.fakes.gateway_service import FakeCommitter
from tests.fakes.memorystore import MemoryStore
from tests.fakes.process import Died
from tests.fakes.refused import refused
from tests.fakes.together import together
from tests.integration.gateway.conftest import NEW, OLD, REPOSITORY, StartGateway, service_config
from tests.site import FQRN, MASTER, PUBLIC_KEY, SIGNER, RunningGateway, now

HASHES = {"old_root_hash": "1" * 40 + "C", "new_root_hash": "2" * 40 + "C"}
KEY, SECRET = "rootkey", "root-secret"
ADMIN = ("adminkey", "admin-secret")


class Http:
    """Calls by hand, signed."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.url = gateway.url
        self.session = requests.Session()
        self.session.trust_env = False

    def __call__(
        self, method: str, path: str, body: bytes = b"", *, signs: bytes | None = None,
        key: tuple[str, str] = (KEY, SECRET), headers: dict[str, str] | None = None,
    ) -> requests.Response:  # fmt: skip
        signed = {} if signs is None else {"Authorization": authorization(*key, signs)}
        return self.session.request(
            method, self.url + path, data=body, headers={**signed, **(headers or {})}, timeout=20
        )

    def acquire(self, path: str, **headers: str) -> requests.Response:
        body = json.dumps({"path": f"{REPOSITORY}{path}", "api_version": "2", "hostname": "h"}).encode()
        return self("POST", "/api/v1/leases", body, signs=body, headers=headers)


@pytest.fixture
def http(gateway: RunningGateway) -> Http:
    return Http(gateway)


def test_figures_tell_of_leases_commits_and_requests(gateway: RunningGateway, http: Http) -> None:
    client = gateway.client()
    client.commit(client.acquire(REPOSITORY, "/a", hostname="h"), OLD, NEW)
    client.acquire(REPOSITORY, "/b", hostname="h")
    page = http("GET", "/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = set(page.text.splitlines())
    for line in (
        f'nightshift_gateway_commits_total{{outcome="committed",repository="{REPOSITORY}"}} 1.0',
        f'nightshift_gateway_group_size_sum{{repository="{REPOSITORY}"}} 1.0',
        "nightshift_gateway_leases 1.0",
        'nightshift_gateway_lease_events_total{event="granted"} 2.0',
        'nightshift_gateway_http_requests_total{method="POST",route="/api/v1/leases",status="200"} 2.0',
    ):
        assert line in lines, page.text
    assert "/api/v1/leases/{token}" in page.text, "routes by their pattern: a token is in no label"


def test_readiness_names_what_is_missing(start_gateway: StartGateway, tmp_path: Path) -> None:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=now())
    good = RepositoryConfig(lambda: store, lambda: SIGNER, (AcceptedKey(KEY, SECRET),))
    empty = RepositoryConfig(MemoryStore, lambda: SIGNER, (AcceptedKey(KEY, SECRET),))
    http = Http(start_gateway(repositories={FQRN: good}))
    assert (http("GET", "/ready").status_code, http("GET", "/health").json()["status"]) == (200, "ok")
    http = Http(start_gateway(folder=tmp_path / "2", repositories={FQRN: good, "empty.example.org": empty}))
    reply = http("GET", "/ready")
    assert reply.status_code == 503
    assert reply.json()["repositories"] == {FQRN: "ok", "empty.example.org": "no .cvmfspublished in the store"}


def test_a_commit_body_that_is_signed_must_be_the_one_that_was_signed(gateway: RunningGateway, http: Http) -> None:
    reply = http.acquire("/a")
    assert "body-signature" in reply.headers["X-Nightshift-Offers"]
    assert "body-signature" in http("GET", "/api/v1").headers["X-Nightshift-Offers"]
    token, body = reply.json()["session_token"], json.dumps(HASHES).encode()
    good = sign_body(SECRET, token, body)
    for sent, signature in (
        (body.replace(b"2", b"3"), good),
        (body, sign_body("another", token, body)),
        (body, sign_body(SECRET, "A" * 52 + "====", body)),
        (body, ""),
        (body, "é"),
    ):
        headers = {"X-Nightshift-Body-Signature": signature.encode().decode("latin-1")}
        refused = http("POST", f"/api/v1/leases/{token}", sent, signs=token.encode(), headers=headers).json()
        assert (refused["status"], refused["reason"]) == ("error", "invalid_hmac")
    assert gateway.committer.orders == []
    headers = {"X-Nightshift-Body-Signature": good}
    done = http("POST", f"/api/v1/leases/{token}", body, signs=token.encode(), headers=headers).json()
    assert done == {"final_revision": 1, "status": "ok"}


def test_who_finds_a_path_busy_is_told_where_he_stands(http: Http) -> None:
    assert int(http.acquire("/a").headers["X-Nightshift-Epoch"]) > 0
    assert set(http.acquire("/a").json()) == {"status", "time_remaining"}, "as the stock gateway says it"
    told = http.acquire("/a/b", **{"X-Nightshift-Waiting": "1"}).json()
    assert (told["status"], told["position"], told["waiting"]) == ("path_busy", 2, 2)
    [first, second] = http("GET", "/api/v1/waiting").json()["data"]
    assert (first["path"], first["position"], second["path"]) == (f"{REPOSITORY}/a", 1, f"{REPOSITORY}/a/b")
    assert set(first) == {"path", "key_id", "hostname", "position", "waited", "expected_wait"}


def test_collections_are_refused_clearly(http: Http) -> None:
    body = json.dumps({"repo": REPOSITORY, "dry_run": True}).encode()
    assert http("POST", "/api/v1/gc", body, signs=body).json()["reason"] == "no_admin_key"
    reply = http("POST", "/api/v1/gc", body, signs=body, key=ADMIN).json()
    assert reply["status"] == "error"
    assert "garbage collection is not done by this gateway" in reply["reason"]


def test_too_many_bad_signatures_are_held_off(start_gateway: StartGateway) -> None:
    http, token = Http(start_gateway(limits=RateLimits(refused=Rate(0.5, 3)))), "A" * 52 + "===="
    for method, path in (
        ("DELETE", f"/leases/{token}"), ("POST", "/payloads"), ("POST", f"/payloads/{token}"),
    ):  # fmt: skip
        reply = http(method, f"/api/v1{path}", b"{}", signs=b"wrong", headers={"Message-Size": "2"})
        assert reply.json()["reason"] == "invalid_hmac"
    held = http("GET", "/api/v1/leases")
    assert (held.status_code, int(held.headers["Retry-After"]) > 0) == (429, True)


def test_a_head_without_end_is_answered_and_cut(gateway: RunningGateway, http: Http) -> None:
    long = http("GET", "/api/v1", headers={"X-Long": "x" * 40_000})
    assert long.status_code == 431
    with connection_to(gateway) as connection:
        connection.sendall(b"GET /api/v1 HTTP/1.1\r\nHost: x\r\nX-Long: ")
        reply = b""
        try:
            for _ in range(1000):
                connection.sendall(b"x" * 1000)
        except OSError:
            pass
        try:
            reply = connection.recv(1000)
        except OSError:
            reply = b"HTTP/1.1 431 (reset)"
        assert reply.startswith(b"HTTP/1.1 431")
    assert http("GET", "/health").status_code == 200


def connection_to(gateway: RunningGateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def test_connections_that_send_no_whole_head_are_closed(start_gateway: StartGateway) -> None:
    gateway = start_gateway(limits=RateLimits(head_s=0.3))
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    for sent in (b"", request, b"\r\n"):
        with connection_to(gateway) as connection:
            connection.sendall(sent)
            assert connection.recv(1000) == b"", sent
    with connection_to(gateway) as connection:
        connection.sendall(request + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
        connection.sendall(request)
        while connection.recv(1000):  # what is left of the first reply
            pass


def test_connections_without_a_request_keep_nobody_out(start_gateway: StartGateway) -> None:
    gateway = start_gateway(limits=RateLimits(connections=5))
    http = Http(gateway)
    assert http("GET", "/health").status_code == 200
    idle = [connection_to(gateway) for _ in range(8)]
    assert http("GET", "/health").status_code == 200
    gone = [connection.recv(1000) for connection in idle[:4]]  # each ends when the service has taken those after it
    assert gone == [b""] * 4, "the oldest that never sent a request go first"
    lines = http("GET", "/metrics").text.splitlines()
    assert 'nightshift_gateway_requests_limited_total{limit="connections"} 4.0' in lines
    for connection in idle:
        connection.close()


class Changing:
    """A configuration that is read again."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.now: ServiceConfig | Exception = service_config(folder, **changes)

    def __call__(self) -> ServiceConfig:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


def test_repositories_that_are_not_served_are_logged_at_the_start_and_when_read_again(
    start_gateway: StartGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Changing(tmp_path, not_served={"away.example.org": "no gateway key"})
    http = Http(start_gateway(read_config=source))
    source.now = replace(service_config(tmp_path), not_served={"gone.example.org": "elsewhere"})
    http("POST", "/api/v1/reload", signs=b"", key=ADMIN)
    fields = [record.__dict__["fields"] for record in caplog.records if record.message == "repository not served"]
    assert fields == [
        {"repository": "away.example.org", "reason": "no gateway key"},
        {"repository": "gone.example.org", "reason": "elsewhere"},
    ]


def test_keys_and_repositories_are_read_again_and_bad_ones_refused(start_gateway: StartGateway, tmp_path: Path) -> None:
    source = Changing(tmp_path)
    gateway = start_gateway(read_config=source)
    http, client = Http(gateway), gateway.client()
    lease = client.acquire(REPOSITORY, "/kept", hostname="h")
    assert http("POST", "/api/v1/reload", signs=b"").json()["reason"] == "no_admin_key"
    for bad in (ConfigError("two secrets"), replace(service_config(tmp_path), max_lease_time_s=99.0)):
        source.now = bad
        reply = http("POST", "/api/v1/reload", signs=b"", key=ADMIN).json()
        assert reply["reason"] == "configuration refused, the old one stays"
        client.renew(lease)
    old = service_config(tmp_path)
    repositories = {
        **old.repositories,
        REPOSITORY: replace(old.repositories[REPOSITORY], keys=(AcceptedKey(KEY, SECRET), AcceptedKey("fresh", "s2"))),
        "new.example.org": old.repositories["plain.example.org"],
    }
    source.now = replace(old, repositories=repositories)
    reply = http("POST", "/api/v1/reload", signs=b"", key=ADMIN).json()
    assert (reply["status"], "new.example.org" in reply["repositories"]) == ("ok", True)
    gateway.client("fresh", "s2").acquire(REPOSITORY, "/fresh", hostname="h")
    gateway.client("plainkey").acquire("new.example.org", "/x", hostname="h")
    with refused(errors.BAD_SIGNATURE):
        gateway.client("subkey").acquire(REPOSITORY, "/arch/x86/y", hostname="h")
    assert client.commit(lease, OLD, NEW) == 1


class World:
    """A repository in a folder, and its configuration: all that a gateway needs to be started anywhere."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store((folder / "store").as_uri())
        create_repository(self.store, FQRN, master=MASTER, signer=SIGNER, now=now())
        save_signer(folder / "keys", FQRN, SIGNER)
        loaded = partial(load_signer, folder / "keys", FQRN)
        self.config = RepositoryConfig(partial(open_store, self.store.url), loaded, (AcceptedKey(KEY, SECRET),))

    def start(self, start_gateway: StartGateway, folder: Path) -> RunningGateway:
        """A gateway with a state of its own."""
        committer = StoreCommitter(service_config(folder, repositories={FQRN: self.config}), lambda _: SIGNER)
        committer.start()
        return start_gateway(committer=committer, folder=folder, repositories={FQRN: self.config})

    def publish(self, client: GatewayClient, path: str) -> int:
        with client.lease(FQRN, path, hostname="h") as lease:
            return client.commit(lease, *change(self.store, FQRN, path))  # type: ignore[arg-type]

    def names(self) -> set[str]:
        repository = Repository.open(self.store, fqrn=FQRN, public_keys=[PUBLIC_KEY])
        return {entry.name for entry in repository.revision.listing("")}


def test_a_gateway_started_elsewhere_loses_nothing_but_leases(start_gateway: StartGateway, tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.start(start_gateway, tmp_path / "here")
    client = first.client()
    base = change(world.store, FQRN, "/old")
    assert [world.publish(client, f"/d{number}") for number in range(3)] == [1, 2, 3]
    held = client.acquire(FQRN, "/held", hostname="h")
    first.stop()
    client = world.start(start_gateway, tmp_path / "elsewhere").client()
    assert client.leases() == []
    with pytest.raises(errors.LeaseLost):
        client.commit(held, OLD, NEW)
    epochs = [int(held.epoch or 0), int(client.acquire(FQRN, "/held", hostname="h").epoch or 0)]
    assert epochs[0] < epochs[1], "the fence goes on"
    assert world.publish(client, "/d3") == 4
    with client.lease(FQRN, "/old", hostname="h") as lease:
        assert client.commit(lease, *base) == 5, "a base of before is known from the repository itself"
    assert world.names() == {"d0", "d1", "d2", "d3", "old"}


def test_two_gateways_on_one_repository_lose_nothing(start_gateway: StartGateway, tmp_path: Path) -> None:
    world = World(tmp_path)
    clients = [world.start(start_gateway, tmp_path / name).client() for name in ("one", "two")]
    bases = {path: change(world.store, FQRN, path) for path in (f"/{number}" for number in range(8))}
    done: dict[str, int] = {}

    def publish(path: str, client: GatewayClient) -> None:
        with client.lease(FQRN, path, hostname="h") as lease:
            done[path] = client.commit(lease, *bases[path])  # type: ignore[arg-type]

    together(partial(publish, path, clients[number % 2]) for number, path in enumerate(bases))
    assert set(done) == set(bases)
    assert world.names() == {path[1:] for path in bases}
    assert read_head(world.store, FQRN).manifest.revision == max(done.values())


def test_a_reflog_that_a_crash_left_ahead_is_taken_over_when_the_service_starts(tmp_path: Path) -> None:
    world = World(tmp_path)

    def die(step: SwitchStep) -> None:
        if step is SwitchStep.REFLOG_WRITTEN:
            raise Died

    old, new = change(world.store, FQRN, "/a")
    with pytest.raises(Died):
        commit_change(
            world.store, fqrn=FQRN, signer=SIGNER, lease_path="/a", old_root=old, new_root=new,
            now=int(time.time()), on_step=die,
        )  # fmt: skip
    assert not reflog_matches(world)
    committer = StoreCommitter(service_config(tmp_path, repositories={FQRN: world.config}), lambda _: SIGNER)
    committer.start()
    assert reflog_matches(world)
    committer.close()


def reflog_matches(world: World) -> bool:
    from include.cvmfs.format.hashes import hash_bytes

    manifest = read_head(world.store, FQRN).manifest
    return manifest.reflog is not None and hash_bytes(world.store.get(REFLOG_KEY)).digest == manifest.reflog.digest


def test_other_addresses_than_loopback_are_refused_without_the_switch(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "gateway.example.org"):
        with refused(ConfigError) as caught:
            serve(partial(service_config, tmp_path, host=host), committer=FakeCommitter())
        assert "gateway.insecure" in str(caught.value)
    with refused(ConfigError) as caught:
        # an address of no machine
        serve(partial(service_config, tmp_path, host="192.0.2.1", insecure=True), committer=FakeCommitter())
    assert "gateway.insecure" not in str(caught.value)


def test_it_speaks_https_with_a_certificate_to_those_who_trust_its_authority(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    authority = Authority(datetime.now(UTC))
    files = authority.files(tmp_path, "server", timedelta(days=1))
    pair = {"certificate": Path(files.certificate), "private_key": Path(str(files.key))}
    gateway = start_gateway(**pair)
    assert gateway.url.startswith("https://127.0.0.1:")
    extra = {"authorities": str(authority.bundle(tmp_path))}
    trusting = ConnectionSecrets("gateway", host=gateway.url, login="rootkey", password="root-secret", extra=extra)
    with open_gateway(trusting) as client:
        client.commit(client.acquire(REPOSITORY, "/a", hostname="h"), OLD, NEW)
    with open_gateway(replace(trusting, extra={}), retries=0) as client, refused(GatewayUnreachable) as caught:
        client.acquire(REPOSITORY, "/b", hostname="h")
    assert "TLS" in str(caught.value)
    with refused(ConfigError) as caught:  # an address of no machine: with a certificate no switch is asked for
        serve(partial(service_config, tmp_path, host="192.0.2.1", **pair), committer=FakeCommitter())
    assert "gateway.insecure" not in str(caught.value)
    (tmp_path / "server.key").write_text("none")
    with refused(ConfigError) as caught:
        serve(partial(service_config, tmp_path, **pair))
    assert files.certificate in str(caught.value)
