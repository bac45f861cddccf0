"""Record what this version leaves behind and says: `python -m tests.upgrade.record tests/upgrade/v0.2.0`.

Once for a release; a folder of a release is never changed. `test_upgrade.py` reads all of them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import secrets
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Column, Engine, MetaData, Table, func, insert, select

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.needed_objects import KnownRoot
from include.gateway.client.client import GatewayClient
from include.gateway.errors import GatewayError
from include.gateway.protocol import LeasePath
from include.gateway.service.leases.lease_rows import Received, token_of
from include.gateway.service.leases.lease_table import LeaseTable, Spent, digest_of
from include.json_values import JsonValue
from include.ledger.engine import writing
from include.ledger.migrate import migrate
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.passes import Pass
from include.nightlies.steps.inherit import inherit_batch
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import verify_run
from include.notify import Message, NotifyEvent, claim
from include.provenance.interventions import freeze, thaw
from include.stageout.requests import record_request
from tests.fakes.attempts import attempt
from tests.fakes.builds import tree
from tests.fakes.gateway_service import FakeCommitter, ManualClock
from tests.fakes.loopback import Heard, LoopbackServer, respond
from tests.fakes.transfers import request_of
from tests.integration.gateway.conftest import REPOSITORY, service_config
from tests.nights import LINKED, Nights, base_of, night_of, wish
from tests.site import FQRN, RunningGateway, now
from triggers.checks import CHECKS
from triggers.fts import TransfersTrigger
from triggers.night import FirstArtifactTrigger, NightTrigger
from triggers.poll import PollTrigger
from triggers.replicas import ReplicaJobTrigger

KEY = ("rootkey", "root-secret")
HOLDER = "nightly_install_main/scheduled__2026-11-21T00:30:00+00:00/artifact.publish[3] try 2"
ROOTS = tuple(ObjectHash.parse(digit * 40) for digit in "12")
LEASE_S = 100.0
PER_KIND = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of this release, which may not exist yet")
    folder = parser.parse_args().folder
    folder.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        ledger, values = night(Path(scratch))
        (folder / "ledger.sql").write_text(ledger)
        state, tokens = gateway_state(Path(scratch) / "state.db")
        (folder / "gateway.sql").write_text(state)
        exchanges = conversation(Path(scratch) / "gateway")
    documents = {"values": values, "waits": waits(), "tokens": tokens, "exchanges": exchanges}
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def dump(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return "\n".join([f"PRAGMA user_version = {version};", *connection.iterdump(), ""])


# -- the ledger, and what tasks hand to each other


def night(folder: Path) -> tuple[str, dict[str, list[Any]]]:
    """A ledger after two nights, an undo, a freeze and a request for transfers; forms of values by their classes."""
    values: defaultdict[str, list[Any]] = defaultdict(list)
    to_json = JsonValue.to_json

    def noted(value: JsonValue) -> dict[str, Any]:
        form, kind = to_json(value), f"{type(value).__module__}:{type(value).__name__}"
        if len(values[kind]) < PER_KIND and form not in values[kind]:
            values[kind].append(form)
        return form

    site = Nights(folder).with_gateway().with_slot(**LINKED)
    migrate(site.site.ledger)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JsonValue, "to_json", noted)
            tell(site)
        tables = MetaData()
        tables.reflect(site.site.ledger)
        for table in tables.sorted_tables:
            fill(site.site.ledger, table)
    finally:
        site.close()
    return dump(folder / "ledger.db"), dict(values)


def tell(site: Nights) -> None:
    """The story: it calls what tasks call, and writes values as tasks hand them on."""
    site.drop(1, {"Gaudi": b"1", "LHCb": b"2"})
    _whole(site, night_of(1))
    site.drop(2, {"Gaudi": b"3"}, **base_of(1))
    _whole(site, night_of(2, number=2, earlier=("night/1",), last=False))
    undone, _ = site.taken_back(wish("b20261102", move_links=True))
    undone.to_json()
    site.by_hand("/by/hand", tree({"file": b"5"}))
    Pass("night/2", 2, until=now()).to_json()
    ledger, at = site.site.ledger, now()
    freeze(site.site, FQRN, reason="disks are moved: é", who="shift@node", until=at + timedelta(hours=1), now=at)
    thaw(site.site, FQRN, who="other@node", now=at)
    claim(
        ledger, Message("failed:main:1", NotifyEvent.FAILED, "error", "title: é", "text"), now=at, window=timedelta(1)
    )
    record_request(ledger, request_of(2, size=10), now=at)
    for known in publications_of_run(ledger, "night/1"):
        known.to_json()


def _whole(site: Nights, night: Night) -> None:
    night.to_json()
    plan = site.plan_of(night)
    if plan.inherited is not None:
        plan.inherited.to_json()
        inherit_batch(site.site, attempt(night.run), plan.inherited)
    for batch in plan.batches:
        batch.to_json()
        site.prepare(batch)
        site.publish(batch)
    verify_run(site.site, attempt(night.run))
    site.gate(night)
    site.link(night)


def fill(ledger: Engine, table: Table) -> None:
    """Two rows in a table that the story leaves empty, each column with what its type holds."""
    columns = [column for column in table.columns if not column.foreign_keys]

    def work(connection: Any) -> None:
        if connection.scalar(select(func.count()).select_from(table)):
            return
        parents = {
            column.name: connection.scalar(select(next(iter(column.foreign_keys)).column).limit(1))
            for column in table.columns
            if column.foreign_keys
        }
        for number in (1, 2):
            connection.execute(
                insert(table), {**{column.name: sample(column, number) for column in columns}, **parents}
            )

    writing(ledger, work)


def sample(column: Column[Any], number: int) -> Any:
    """A value of the column's type."""
    kind, at = column.type.python_type, datetime(2026, 11, 20 + number)  # noqa: DTZ001 - as the ledger keeps it
    if kind is str:
        text = f"{column.name[:12]}-{number}"
        return text[: getattr(column.type, "length", None) or len(text)]
    samples = {datetime: at, date: at.date(), bytes: bytes([number] * 20)}
    return samples.get(kind, kind(number) if kind in (int, float, bool) else None)


def waits() -> dict[str, Any]:
    """Form in which deferred tasks are kept: the arguments of each check, and of each trigger's class."""
    checks = {name: list(signature(row.look).parameters)[1:] for name, row in CHECKS.items()}
    classes = [PollTrigger, TransfersTrigger, FirstArtifactTrigger, NightTrigger, ReplicaJobTrigger]
    names = {f"{kind.__module__}.{kind.__name__}": list(signature(kind).parameters) for kind in classes}
    return {"checks": checks, "triggers": names}


# -- the gateway's state, and its conversation with our client


def gateway_state(file: Path) -> tuple[str, dict[str, str]]:
    """A state with leases that are held, one that is spent, payloads, revisions, a disabled repository; its tokens."""
    table = LeaseTable(file, clock=ManualClock(), max_lease_time_s=LEASE_S)
    try:
        tokens = {path: _take(table, path) for path in ("/held", "/paid", "/spent")}
        paid, spent = (table.valid(digest_of(tokens[path])) for path in ("/paid", "/spent"))
        assert paid is not None
        assert spent is not None
        table.add_payload(digest_of(tokens["/paid"]), paid.epoch, Received(1, 2, 3, 4, 5, 6), "4:idle").result()
        table.begin_switch([(digest_of(tokens["/spent"]), spent.epoch)]).result()
        table.settle([Spent(digest_of(tokens["/spent"]), spent, ROOTS, 7)]).result()
        table.enable("plain.example.org", False).result()
        table.remember_revisions(REPOSITORY, [KnownRoot(root, number) for number, root in enumerate(ROOTS, 6)])
    finally:
        table.close()
    return dump(file), tokens


def _take(table: LeaseTable, path: str) -> str:
    token = partial(token_of, KEY[1], f'{{"path":"{path}","request":"1"}}'.encode())
    place = LeasePath(REPOSITORY, path)
    granted: Any = table.acquire(place, key_id=KEY[0], hostname=HOLDER, version=2, token=token).result()
    return str(granted.token)


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """The URL of the service, its clock standing still, on the state in a folder."""
    folder.mkdir(exist_ok=True)
    gateway = RunningGateway(partial(service_config, folder, max_lease_time_s=LEASE_S), FakeCommitter(), ManualClock())
    try:
        yield gateway.start().url
    finally:
        gateway.stop()


def conversation(folder: Path) -> list[dict[str, Any]]:
    """The exchanges of our client with our service, in order."""
    with service(folder) as url, Recorder(url) as recorder:
        converse(f"http://{recorder.address}")
        return recorder.exchanges


def converse(url: str) -> dict[str, Any]:
    """Every call that our client makes, with its refusals; what it understood of the replies."""
    heard: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda size=16: "5a" * (size or 16))
        with GatewayClient(url, *KEY, retries=0) as client:
            client.ping()
            heard["repositories"] = [repository.name for repository in client.repositories()]
            lease = client.acquire(REPOSITORY, "/arch/x86", hostname=HOLDER)
            with GatewayClient(url, "subkey", "sub-secret", retries=0) as other:
                _refused(lambda: other.acquire(REPOSITORY, "/arch/x86/gcc", hostname="another"))
                _refused(lambda: other.acquire(REPOSITORY, "/elsewhere", hostname="another"))
            heard["leases"] = [(held.path, held.hostname) for held in client.leases()]
            heard["renewed"] = client.renew(lease).expires_monotonic is not None
            heard["revision"] = client.commit(lease, *ROOTS, tag=NewTag("b1", "main, build b1: é"), generation="4:idle")
            _refused(lambda: client.renew(lease))
            client.drop(client.acquire(REPOSITORY, "/é", hostname=HOLDER))
        with GatewayClient(url, "rootkey", "another secret", retries=0) as stranger:
            _refused(lambda: stranger.acquire(REPOSITORY, "/arch", hostname=HOLDER))
    return heard


def _refused(call: Callable[[], object]) -> None:
    with suppress(GatewayError):
        call()
        raise AssertionError("it was not refused")


# -- HTTP between a client and a service, kept or given again

HEADERS = {"authorization", "message-size", "content-type", "retry-after", "allow"}
BY_CHANCE = "x-nightshift-trace"


class Recorder(LoopbackServer):
    """Between a client and a service, or in the service's place; the ``exchanges`` in order.

    Args:
        upstream: The service's URL; without it, `replies` are given.
        replies: Exchanges that were recorded, whose replies are given in their order.
    """

    METHODS = ("GET", "POST", "PATCH", "DELETE")

    def __init__(self, upstream: str = "", replies: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__()
        self.exchanges: list[dict[str, Any]] = []
        self._upstream, self._replies = upstream, iter(replies)

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        """Hand the request on, or give the next reply."""
        told = {
            "method": request.method, "path": request.path, "headers": _ours(request.headers),
            "body": request.body.decode(),
        }  # fmt: skip
        reply = send(self._upstream, told) if self._upstream else next(self._replies)["reply"]
        self.exchanges.append({"request": told, "reply": reply})
        respond(handler, reply["status"], reply["body"].encode(), reply["headers"])


def send(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The service's reply to a request."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request(request["method"], request["path"], request["body"].encode() or None, request["headers"])
        reply = connection.getresponse()
        body = re.sub(r'"pid":\d+', '"pid":0', reply.read().decode())
        return {"status": reply.status, "headers": _ours(reply.headers), "body": body}
    finally:
        connection.close()


def _ours(headers: Any) -> dict[str, str]:
    """The protocol's headers; those of the HTTP library may differ."""
    lower = {name.lower(): value for name, value in headers.items()}
    kept = {name: value for name, value in lower.items() if name in HEADERS or name.startswith("x-nightshift-")}
    return {name: "" if name == BY_CHANCE else value for name, value in sorted(kept.items())}


if __name__ == "__main__":
    main()
