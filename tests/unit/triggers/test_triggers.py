"""Triggers only watch: they come back from their arguments, say what they saw, and carry no secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from airflow.sdk.module_loading import import_string

from triggers.lease import LeaseFreeTrigger
from triggers.night import NightTrigger
from triggers.objects import ObjectTrigger
from triggers.pause import PauseTrigger

SECRET = "secret-of-the-key"


class _Leases(BaseHTTPRequestHandler):
    answers: list[dict[str, Any]]
    seen: list[str]

    def do_GET(self) -> None:
        type(self).seen.append(str(self.headers))
        held = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        body = json.dumps({"status": "ok", "data": held}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def _lease(path: str) -> dict[str, Any]:
    expires = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC")
    return {f"nights.example.org{path}": {"key_id": "k", "path": f"nights.example.org{path}", "expires": expires,
                                          "hostname": "dag/run/publish try 1"}}  # fmt: skip


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Leases]]:
    handler = type("Handler", (_Leases,), {"answers": [{}], "seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    connection = {"conn_type": "cvmfs_gateway", "host": "127.0.0.1", "port": server.server_port, "login": "worker",
                  "password": SECRET}  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY", json.dumps(connection))
    yield handler
    server.shutdown()
    server.server_close()
    thread.join(5)


def _event(trigger: Any) -> dict[str, Any]:
    async def first() -> Any:
        return await anext(trigger.run())

    return dict(asyncio.run(asyncio.wait_for(first(), 20)).payload)


def test_the_lease_trigger_fires_once_nobody_holds_the_path(gateway: type[_Leases]) -> None:
    gateway.answers[:] = [_lease("/a/b"), _lease("/a"), _lease("/a/bc")]
    event = _event(LeaseFreeTrigger("gateway", "nights.example.org", "/a/b", poll_s=0.05, since="then"))
    assert event == {"free": True, "holder": None, "reason": "nights.example.org/a/b is free", "since": "then"}
    assert len(gateway.seen) == 3, "a lease above or at the path is in the way, one beside it is not"


def test_the_lease_trigger_names_the_holder_at_its_deadline(gateway: type[_Leases]) -> None:
    gateway.answers[:] = [_lease("/a/b/c")]
    deadline = datetime.now(UTC) + timedelta(seconds=0.2)
    event = _event(LeaseFreeTrigger("gateway", "nights.example.org", "/a/b", deadline.isoformat(), poll_s=0.05))
    assert (event["free"], event["holder"]) == (False, "dag/run/publish try 1")


def test_the_lease_trigger_sends_and_carries_no_secret(gateway: type[_Leases]) -> None:
    trigger = LeaseFreeTrigger("gateway", "nights.example.org", "/a/b", poll_s=0.05)
    event = _event(trigger)
    assert SECRET not in json.dumps([trigger.serialize(), event])
    assert not any("authorization" in headers.lower() for headers in gateway.seen)


@pytest.mark.parametrize(
    "trigger",
    [
        LeaseFreeTrigger("gateway", "nights.example.org", "/a", "2026-11-21T00:00:00+00:00", 3.0, "since"),
        ObjectTrigger("builds", "main/x", "2026-11-21T00:00:00+00:00", 5.0),
        NightTrigger({"slot": "main"}, {"first": "scheduled__1"}, 5.0),
    ],
)
def test_a_trigger_comes_back_from_its_arguments(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == trigger.serialize()


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\n'
        f'stores: {{builds: {{url: "file://{tmp_path}/builds"}}}}\n'
        "repositories:\n  nights.example.org:\n    store: builds\n    public_url: http://127.0.0.1:1\n"
        "    public_key: nights.pub\n    gateway: gateway\n"
        "slots: {main: {repository: nights.example.org, store: builds}}\n"
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    folder = tmp_path / "builds" / "main" / "2026-11-21"
    folder.mkdir(parents=True)
    return folder / "index.json"


def test_the_object_trigger_fires_when_the_object_is_there(builds: Path) -> None:
    builds.write_bytes(b"x")
    event = _event(ObjectTrigger("builds", "main/2026-11-21/index.json"))
    assert event["found"]
    assert "has 1 bytes" in event["reason"]


def test_a_pause_ends_after_its_time_or_at_the_deadline() -> None:
    since = datetime.now(UTC).isoformat()
    for pause_s, deadline in ((0.0, None), (3600.0, datetime.now(UTC).isoformat())):
        trigger = _again(PauseTrigger(pause_s, deadline, since))
        event = _event(trigger)
        assert event["since"] == since
        assert event["reason"] == "waited for 0 s, looking again"


def _again(trigger: PauseTrigger) -> PauseTrigger:
    """As the triggerer makes it from what was serialized."""
    path, arguments = trigger.serialize()
    made = import_string(path)(**json.loads(json.dumps(arguments)))
    assert isinstance(made, PauseTrigger)
    return made
