"""The kinds of wait: their keys and arguments are in Airflow's database, and every one is made from its row alone."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from triggers.checks import CHECKS
from triggers.poll import PollTrigger

STORED: dict[str, dict[str, Any]] = {
    "lease-free": {"repository": "nights.example.org", "path": "/a/b", "gateway_conn_id": "gateway"},
    "object": {"store": None, "key": "main/index.json", "store_conn_id": "ours"},
    "path": {"fqrn": "nights.example.org", "path": "/a/b", "absent": True},
    "revision": {"fqrn": "nights.example.org", "revision": 3, "tag": "v1"},
    "place": {"repository": "nights.example.org", "path": "/a/b", "wanted": "free", "replaces": True},
    "thaw": {"repository": "nights.example.org"},
    "collection": {"repository": "nights.example.org", "number": 7, "shards": [3, 200]},
    "pause": {},
    "replicas-in-sync": {"repository": "nights.example.org", "replicas": ["s1"], "revision": 3},
    "replicas-quiet": {"repository": "nights.example.org"},
    "replica-job": {"repository": "nights.example.org", "replica": "s1", "verb": "snapshot"},
    "ceph-clean": {"target": "hlt2"},
    "fts-jobs": {
        "fts_conn_id": "fts_default",
        "job_ids": ["01874efb-4735-4595-bc9c-591aef8240c9"],
        "at_rest": True,
    },
}
"""Rows of tasks that wait while Nightshift is replaced have these keys and arguments: none is renamed or removed."""


def test_the_keys_are_those_that_are_stored() -> None:
    assert set(CHECKS) == set(STORED)


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("lease-free", {"repository": "nights.example.org", "path": "/a/b"}),
        ("object", {"store": "builds", "key": "main/index.json"}),
        ("fts-jobs", {"fts_conn_id": "fts_default", "job_ids": ["01874efb-4735-4595-bc9c-591aef8240c9"]}),
    ],
)
def test_a_row_of_an_earlier_release_is_made_without_the_arguments_of_today(key: str, row: dict[str, Any]) -> None:
    inspect.signature(CHECKS[key].look).bind(lambda: None, **row)


@pytest.mark.parametrize("key", STORED)
def test_a_check_is_made_from_its_arguments_as_json(key: str) -> None:
    arguments = json.loads(json.dumps(STORED[key]))
    bound = inspect.signature(CHECKS[key].look).bind(lambda: None, **arguments)
    bound.apply_defaults()
    assert {name: value for name, value in bound.arguments.items() if name != "connect"} == arguments
    path, row = PollTrigger(key, arguments).serialize()
    assert path == "triggers.poll.PollTrigger"
    assert json.loads(json.dumps(row)) == row
    assert row["poll_s"] == CHECKS[key].poll_s > 0
