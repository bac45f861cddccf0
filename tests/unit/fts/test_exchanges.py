"""Exchanges in the form of FTS REST 3.13.4: each reply has the error that callers treat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.errors import code_of
from include.fts.client.client import FtsClient
from include.fts.client.credentials import BearerToken
from include.fts.client.jobs import FtsFile, FtsJob
from include.fts.errors import FtsError
from tests.fakes.ftsserver import FtsServer

EXCHANGES = {one["name"]: one for one in json.loads((Path(__file__).parent / "wire" / "exchanges.json").read_text())}
JOB = FtsJob((FtsFile("https://a.example.org/f", "https://b.example.org/f"),))


@pytest.fixture
def server() -> Iterator[FtsServer]:
    with FtsServer() as running:
        yield running


def _replies(server: FtsServer, exchange: dict[str, Any]) -> None:
    method, path = exchange["request"].split(" ")
    body = exchange["body"].encode() if exchange["content_type"] == "text/html" else exchange["body"]
    server.answer(method, f"^{path}$", exchange["status"], body, Content_Type=exchange["content_type"])


@pytest.mark.parametrize("name", [name for name, one in EXCHANGES.items() if "error" in one])
def test_a_refused_submission_has_its_error_and_is_sent_once(server: FtsServer, name: str) -> None:
    exchange = EXCHANGES[name]
    _replies(server, exchange)
    with FtsClient(server.url, BearerToken("hidden")) as client, pytest.raises(FtsError) as caught:
        client.submit(JOB)
    assert (code_of(caught.value), caught.value.status) == (exchange["error"], exchange["status"])
    assert server.count("POST", "/jobs") == 1


def test_anonymous_is_an_identity_and_not_an_error(server: FtsServer) -> None:
    _replies(server, EXCHANGES["anonymous"])
    _replies(server, EXCHANGES["no delegation yet"])
    with FtsClient(server.url) as client:
        assert client.whoami().anonymous
        assert client.delegation_ends(client.whoami()) is None
