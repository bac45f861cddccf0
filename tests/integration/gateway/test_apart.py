"""Commits in a process of their own, over HTTP: what goes on with one repository stops no other."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import requests

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.client.client import GatewayClient
from include.gateway.errors import GatewayError
from include.gateway.protocol import authorization
from include.gateway.service import freezes
from include.gateway.service.commits import process as apart
from include.gateway.service.commits.queue import Point
from tests.fakes.apart import ADMIN, KEY, change, committers, create, served, served_of_file, served_with_keys_here
from tests.site import RunningGateway

GOES, STAYS = "goes.example.org", "stays.example.org"
Start = Callable[..., RunningGateway]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services whose commits are made apart, for repositories by name and store."""
    running: list[RunningGateway] = []

    def start(stores: dict[str, str], **more: object) -> RunningGateway:
        (tmp_path / "stores.json").write_text(json.dumps(stores))
        running.append(RunningGateway(partial(served_of_file, str(tmp_path)), None, **more).start())  # type: ignore[arg-type]
        return running[-1]

    yield start
    for gateway in running:
        gateway.stop()


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def publish(gateway: RunningGateway, client: GatewayClient, fqrn: str, path: str) -> int:
    store = gateway.config.repositories[fqrn].store()
    with client.lease(fqrn, path, hostname="h") as lease:
        return client.commit(lease, *change(store, fqrn, path))


class Hold:
    """A point at which the first commit that comes by stands until ``go_on`` is set."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, point: Point) -> None:
        if point is self._point and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(60), "the test never let the commit go on"


def test_a_repository_is_taken_out_during_its_commit_and_nothing_else_stops(
    tmp_path: Path, start: Start, beside: ThreadPoolExecutor
) -> None:
    stores = {name: create(tmp_path, name) for name in (GOES, STAYS)}
    hold = Hold(Point.MERGED)
    gateway = start(stores, on_point=hold)
    client = gateway.client(KEY.id)
    under_way: Future[int] = beside.submit(publish, gateway, client, GOES, "/a")
    assert hold.reached.wait(30)
    try:
        (tmp_path / "stores.json").write_text(json.dumps({STAYS: stores[STAYS]}))
        signed = {"Authorization": authorization(ADMIN.id, ADMIN.secret, b"")}
        reply = requests.post(f"{gateway.url}/api/v1/reload", headers=signed, timeout=20).json()
    finally:
        hold.go_on.set()
    assert reply == {"repositories": [STAYS], "status": "ok"}
    assert under_way.result(30) == 1, "what was begun is ended"
    assert publish(gateway, client, STAYS, "/a") == 1


def test_the_process_that_commits_reads_no_signing_key(tmp_path: Path) -> None:
    stores = {STAYS: create(tmp_path, STAYS)}
    read_config = partial(served_with_keys_here, str(tmp_path), stores, os.getpid())
    others = committers()  # the one that tests share
    gateway = RunningGateway(read_config, None).start()
    try:
        assert publish(gateway, gateway.client(KEY.id), STAYS, "/a") == 1
        [committer] = set(committers()) - set(others)
        committer.kill()
        assert publish(gateway, gateway.client(KEY.id), STAYS, "/b") == 2
    finally:
        gateway.stop()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        yield server


def url_of(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_store_delays_no_other_repository(
    tmp_path: Path, start: Start, beside: ThreadPoolExecutor, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "OPENING_S", 0.05)
    monkeypatch.setattr(freezes, "PATIENCE_S", 0.05)
    stores = {name: create(tmp_path, name) for name in ("sick.example.org", STAYS)}
    stores["sick.example.org"] = url_of(silent)
    before = committers()
    gateway = start(stores)
    client, others = gateway.client(KEY.id), gateway.client(KEY.id)
    for number in range(8):
        assert requests.get(f"{gateway.url}/ready", timeout=20).status_code == 503
        assert others.acquire("sick.example.org", f"/{number}", hostname="h"), (
            "what is not known of a freeze stops no lease"
        )
    lease = others.acquire("sick.example.org", "/a", hostname="h")
    sick = beside.submit(others.commit, lease, ObjectHash.parse("1" * 40), ObjectHash.parse("2" * 40))
    assert publish(gateway, client, STAYS, "/a") == 1
    [committer] = set(committers()) - set(before)
    committer.kill()
    assert publish(gateway, client, STAYS, "/b") == 2, "nor when the process has to be started again"
    assert not sick.done()
    silent.close()
    with pytest.raises(GatewayError):
        sick.result(60)


def test_the_process_ends_with_the_service_while_it_waits_for_a_store(tmp_path: Path, silent: socket.socket) -> None:
    create(tmp_path, "sick.example.org")
    read_config = partial(served, str(tmp_path), {"sick.example.org": url_of(silent)})
    process = apart._Process(apart.Signers(read_config().repositories))
    try:
        process.send("start", read_config, {}, 600.0)
        held, _ = silent.accept()
        with held, socket.socket(fileno=os.dup(process._connection.fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)
            assert process._process.wait(30) == 1
    finally:
        process._process.kill()
