"""A gateway of today goes on with the state of an earlier one, and speaks as it did."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from include.gateway.auth import authorization
from include.gateway.errors import PathBusy
from include.gateway.paths import LeasePath
from include.gateway.service.leases.lease_table import LeaseTable, digest_of
from include.gateway.service.leases.payload_rows import Received
from include.gateway.service.leases.tokens import token_of
from tests.compat.corpus import folders, newest, same_json
from tests.compat.gateways import HOLDER, KEY, LEASE_S, Wire, converse, fill_state, send, service
from tests.compat.sqldump import dump_file, load_into, rows_by_table
from tests.compat.writers.store import OLDER, ROOT
from tests.fakes.gateway_service import ManualClock
from tests.integration.gateway.conftest import REPOSITORY

FOLDERS = pytest.mark.parametrize("folder", folders("gateway"), ids=lambda folder: folder.name)


def state_of(folder: Path, place: Path) -> tuple[Path, dict[str, str]]:
    tokens = json.loads((folder / "gateway" / "tokens.json").read_text())
    return load_into(place / "state.db", (folder / "gateway" / "state.sql").read_bytes()), tokens


@FOLDERS
def test_leases_of_an_earlier_gateway_are_held_and_its_commits_remembered(folder: Path, tmp_path: Path) -> None:
    file, tokens = state_of(folder, tmp_path)
    clock = ManualClock()
    clock.advance(10)
    table = LeaseTable(file, clock=clock, max_lease_time_s=LEASE_S)
    try:
        listed = table.listed()
        assert [(row.path, row.key_id, row.hostname) for row in listed] == [(path, KEY[0], HOLDER) for path in
                                                                            ("/held", "/paid")]  # fmt: skip
        assert [(row.deadline_ns - clock.monotonic) / 1e9 for row in listed] == [90, 90]
        assert table.valid(digest_of(tokens["/held"])) == listed[0]
        assert table.payloads(listed[1].epoch) == Received(1, 2, 3, 4, 5, 6)
        assert table.payload_generation(listed[1].epoch) == "4:idle"
        done = table.finished(digest_of(tokens["/spent"]))
        assert done is not None
        assert (done.made_from(OLDER, ROOT), done.revision) == (True, 7)
        assert table.disabled() == {"plain.example.org"}
        assert {(one.root, one.number) for one in table.revisions(REPOSITORY)} == {(OLDER, 6), (ROOT, 7)}
        token = partial(token_of, KEY[1], b"{}")
        path = LeasePath(REPOSITORY, "/new")
        granted: Any = table.acquire(path, key_id="k", hostname="h", version=2, token=token).result()
        assert granted.row.epoch > max(row.epoch for row in listed) + 1, "an epoch is never given out twice"
    finally:
        table.close()


@FOLDERS
def test_a_client_goes_on_with_its_lease_at_a_gateway_of_today(folder: Path, tmp_path: Path) -> None:
    _, tokens = state_of(folder, tmp_path)
    with service(tmp_path) as gateway:
        client = gateway.client()
        with pytest.raises(PathBusy) as busy:
            client.acquire(REPOSITORY, "/held/below", hostname="another")
        assert busy.value.holder is not None
        assert busy.value.holder.hostname == HOLDER
        at, token = urlsplit(gateway.url), tokens["/held"]
        headers = {"authorization": authorization(*KEY, token.encode())}
        for method in ("PATCH", "DELETE"):
            request = {"method": method, "path": f"/api/v1/leases/{token}", "headers": headers, "body": ""}
            reply = send(at.hostname or "", at.port or 0, request)
            assert json.loads(reply["body"])["status"] == "ok", reply
        assert [lease.path for lease in client.leases()] == ["/paid"]


def test_a_state_is_written_as_it_was(tmp_path: Path) -> None:
    tokens = fill_state(tmp_path / "state.db")
    assert tokens == json.loads((newest("gateway") / "tokens.json").read_text())
    was = rows_by_table((newest("gateway") / "state.sql").read_bytes())
    assert same_json(rows_by_table(dump_file(tmp_path / "state.db")), was) == []


@FOLDERS
def test_a_service_of_today_answers_an_earlier_client_as_it_did(folder: Path, tmp_path: Path) -> None:
    with service(tmp_path) as gateway:
        at = urlsplit(gateway.url)
        for exchange in recorded(folder):
            reply = send(at.hostname or "", at.port or 0, exchange["request"])
            assert reply == exchange["reply"], exchange["request"]


def test_a_client_of_today_asks_as_it_did_and_understands_the_replies() -> None:
    exchanges = [one for one in recorded(folders("gateway")[-1]) if not one.get("look")]
    with Wire(replies=[one["reply"] for one in exchanges]).listening() as wire:
        converse(wire.url)
    assert [one["request"] for one in wire.exchanges] == [one["request"] for one in exchanges]


def recorded(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "gateway" / "exchanges.json").read_text())
    return found
