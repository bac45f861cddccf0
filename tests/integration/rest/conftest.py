"""The REST API over a ledger, with the login that Airflow would give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from include.site.site import Site
from include.stageout.rest.app import create_api
from tests.fakes.transfers_site import stageout_user, transfers_site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with transfers_site(tmp_path) as found:
        yield found


@pytest.fixture
def anybody(site: Site) -> TestClient:
    """A client without a login."""
    app = create_api(stageout_user, lambda: site)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


class ApiUser:
    """A user with a login who calls the API."""

    def __init__(self, client: TestClient, name: str) -> None:
        self._client, self._headers = client, {"authorization": f"Bearer {name}"}

    def get(self, path: str, **query: Any) -> Any:
        return self._client.get(path, params=query, headers=self._headers)

    def post(self, path: str, document: Any = None, **headers: str) -> Any:
        return self._client.post(path, json={} if document is None else document, headers=self._headers | headers)

    def send(self, body: bytes, kind: str = "application/json", path: str = "/requests") -> Any:
        return self._client.post(path, content=body, headers=self._headers | {"content-type": kind})


@pytest.fixture
def ann(anybody: TestClient) -> ApiUser:
    return ApiUser(anybody, "ann")


@pytest.fixture
def bob(anybody: TestClient) -> ApiUser:
    return ApiUser(anybody, "bob")


@pytest.fixture
def olga(anybody: TestClient) -> ApiUser:
    """An operator."""
    return ApiUser(anybody, "olga")


def file(number: int = 0, **fields: object) -> dict[str, object]:
    return {
        "source": "pisa", "source_name": f"/store/temp/user/ann/{number}.root",
        "destination": "bari", "destination_name": f"/store/user/ann/{number}.root", **fields,
    }  # fmt: skip


def wanted(*files: dict[str, object], **fields: object) -> dict[str, object]:
    return {"key": "k1", "workflow": "w", "files": list(files or (file(),)), **fields}


def refusal(answer: Any) -> tuple[int, str]:
    document = answer.json()
    assert document.keys() == {"code", "message", "hint"}
    assert all(document.values())
    assert document["hint"] not in document["message"]
    return answer.status_code, document["code"]
