"""A small deployment (a store, a gateway, a ledger, a slot) on which the steps of nights are called one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from include.nightlies.steps import sources
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
    monkeypatch.setattr(sources, "PAUSE_S", 0.01)  # before a damaged index is read again
    nights = Nights(tmp_path, place.store.child(FQRN), f"{place.public_url}/{FQRN}")
    nights.environment["AIRFLOW_CONN_STORE"] = connection(OWNER.access_key, OWNER.secret_key)
    nights.with_gateway().with_slot().configure(stores={"cvmfs": place.settings})
    for name, value in nights.environment.items():
        monkeypatch.setenv(name, value)
    yield nights
    nights.close()


Once = Callable[[str, Callable[[], object]], None]
_told: dict[str, Path] = {}


@pytest.fixture
def once(
    nights: Nights, place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Once:
    """A story by its name happens once in a session; later deployments take over its store and its ledger."""

    def happens(name: str, story: Callable[[], object]) -> None:
        if not isinstance(place.store, FileStore):
            story()
            return
        if name not in _told:
            story()
            nights.stop()
            _told[name] = tmp_path_factory.mktemp(name)
            _copy(nights.folder, _told[name])
        nights.stop()
        (nights.folder / "gateway.db").unlink()
        shutil.rmtree(nights.folder / "store")
        _copy(_told[name], nights.folder)
        nights.start()
        monkeypatch.setenv("AIRFLOW_CONN_GATEWAY", nights.environment["AIRFLOW_CONN_GATEWAY"])

    return happens


def _copy(folder: Path, to: Path) -> None:
    """Copy the store and the ledger of a deployment that is stopped."""
    shutil.copytree(folder / "store", to / "store")
    shutil.copy(folder / "ledger.db", to)
