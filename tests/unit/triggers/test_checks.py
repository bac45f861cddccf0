"""The kinds of wait: their keys and arguments are in Airflow's database, and every one is made from its row alone."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from include.cvmfs.coordination.freeze import Freeze, freeze, thaw
from include.storage.store import Store
from tests.fakes.plainsite import FQRN, plain_site
from triggers import poll
from triggers.checks import CHECKS, unfrozen
from triggers.poll import PollTrigger

JOB = "01874efb-4735-4595-bc9c-591aef8240c9"
STORED: dict[str, dict[str, Any]] = {
    "lease-free": {"repository": FQRN, "path": "/a/b", "gateway_conn_id": "gateway"},
    "object": {"store": None, "key": "main/index.json", "store_conn_id": "ours"},
    "path": {"fqrn": FQRN, "path": "/a/b", "absent": True},
    "revision": {"fqrn": FQRN, "revision": 3, "tag": "v1"},
    "place": {"repository": FQRN, "path": "/a/b", "wanted": "free", "replaces": True},
    "thaw": {"repository": FQRN},
    "collection": {"repository": FQRN, "number": 7, "shards": [3, 200]},
    "pause": {},
    "replicas-in-sync": {"repository": FQRN, "replicas": ["s1"], "revision": 3},
    "replicas-quiet": {"repository": FQRN},
    "replica-job": {"repository": FQRN, "replica": "s1", "verb": "snapshot"},
    "ceph-clean": {"target": "hlt2"},
    "sites-usable": {"sites": ["T2_IT_Pisa"]},
    "workflow-registered": {"owner": "ada", "workflow": "w", "allow_failed": False},
    "fts-jobs": {"fts_conn_id": "fts_default", "job_ids": [JOB]},
    "transfers": {"request": 7, "since": "2026-11-21T02:03:04+00:00"},
}
"""Rows of tasks that wait while Nightshift is replaced have these keys and arguments: none is renamed or removed."""


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("lease-free", {"repository": "nights.example.org", "path": "/a/b"}),
        ("object", {"store": "builds", "key": "main/index.json"}),
        ("fts-jobs", {"fts_conn_id": "fts_default", "job_ids": [JOB]}),
    ],
)
def test_a_row_of_an_earlier_release_is_made_without_the_arguments_of_today(key: str, row: dict[str, Any]) -> None:
    inspect.signature(CHECKS[key].look).bind(lambda: None, **row)


@pytest.mark.parametrize("key", STORED)
def test_a_check_is_made_from_its_arguments_as_json(key: str) -> None:
    assert set(CHECKS) == set(STORED)
    arguments = json.loads(json.dumps(STORED[key]))
    bound = inspect.signature(CHECKS[key].look).bind(lambda: None, **arguments)
    bound.apply_defaults()
    assert {name: value for name, value in bound.arguments.items() if name != "connect"} == arguments
    path, row = PollTrigger(key, arguments).serialize()
    assert path == "triggers.poll.PollTrigger"
    assert json.loads(json.dumps(row)) == row
    assert row["poll_s"] == CHECKS[key].poll_s > 0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = plain_site(tmp_path).repository_store(FQRN)
    freeze(store, Freeze("one", "disks are moved", "op@host", datetime.now(UTC)))
    return store


def test_the_trigger_fires_after_the_thaw(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = plain_site(tmp_path)
    monkeypatch.setattr(poll, "open_site", lambda _: site)
    assert unfrozen(lambda: site, FQRN).ready is False

    async def fires() -> Any:
        return await anext(PollTrigger("thaw", {"repository": FQRN}, poll_s=0.01).run())

    thaw(store, datetime.now(UTC))
    event = asyncio.run(fires())
    assert event.payload == {"found": True, "reason": f"{FQRN} is no longer frozen", "since": None}
