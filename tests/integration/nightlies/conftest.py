"""A small deployment (a store, a gateway, a ledger, a slot) on which the steps of nights are called one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from include.storage.file import FileStore
from include.storage.store import Store
from lab.servers.weed import WeedServer
from tests.integration.conftest import BUCKET, OWNER
from tests.nights import FQRN, Nights
from tests.site import connection


@dataclass
class Place:
    """Place of a deployment's objects: its store, the settings of it, and the URL at which everybody reads."""

    store: Store
    public_url: str
    settings: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(params=["file", pytest.param("weed", marks=[pytest.mark.server("weed"), pytest.mark.thorough])])
def place(request: pytest.FixtureRequest, s3_prefix: str, tmp_path: Path) -> Place:
    """A folder. The steps know a store by its interface: on S3 is what `dags`, `publishers` and `storage` test."""
    if request.param == "file":
        store: Store = FileStore(tmp_path / "store")
        return Place(store, store.url, {"url": store.url})
    weed: WeedServer = request.getfixturevalue("weed")
    store = weed.store(BUCKET, s3_prefix)
    settings = {"url": f"s3://{BUCKET}/{s3_prefix}", "endpoint": weed.endpoint, "connection": "store"}
    return Place(request.getfixturevalue("knowing")(weed, store), weed.public_url(BUCKET, s3_prefix), settings)


@pytest.fixture
def nights(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    nights = Nights(tmp_path, place.store.child(FQRN), f"{place.public_url}/{FQRN}")
    nights.environment["AIRFLOW_CONN_STORE"] = connection(OWNER.access_key, OWNER.secret_key)
    nights.with_gateway().with_slot().configure(stores={"cvmfs": place.settings})
    for name, value in nights.environment.items():
        monkeypatch.setenv(name, value)
    yield nights
    nights.close()
