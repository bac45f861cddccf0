"""A small site in a folder: a repository and builds in file stores, a real gateway, and the keys of the corpus."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from include.cvmfs.commit.create import create_repository
from include.gateway.client.client import GatewayClient
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.storage.file import FileStore
from tests.compat.corpus import keys_folder
from tests.compat.keys import FQRN, master, signer
from tests.fakes.builds import Build, tree

KEY = ("worker", "not-a-secret")
ADMINISTRATOR = ("administrator", "not-a-secret-either")
DAY = date(2026, 11, 21)
LEASE_S = 900
"""Longer than an earlier checkout takes to import Airflow on a busy machine."""
CONFIGURATION = """
ledger: "sqlite:///{folder}/ledger.db"
paths: {{var: "{folder}/var"}}
gateway: {{max_lease_time_s: 60, keys: "{folder}/keys"}}
stores:
  cvmfs: {{url: "file://{folder}/store"}}
  builds: {{url: "file://{folder}/builds"}}
repositories:
  {fqrn}:
    store: cvmfs
    public_url: "file://{folder}/store/{fqrn}"
    public_key: "{folder}/keys/{fqrn}.pub"
    gateway: gateway
    gateway_admin: gateway_admin
slots:
  main:
    repository: {fqrn}
    store: builds
    schedule: "30 1 * * *"
    timezone: UTC
    links: {{}}
    tag: "{{slot}}-{{build_id}}"
  watched: {{repository: {fqrn}, store: builds, begins: artifact, timezone: UTC, poll_s: 5}}
"""


@dataclass
class CompatSite:
    """What is tested reaches it by `environment`, as another process does."""

    folder: Path
    url: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def builds(self) -> FileStore:
        return FileStore(self.folder / "builds")

    @property
    def store(self) -> FileStore:
        return FileStore(self.folder / "store" / FQRN)

    def client(self, key: tuple[str, str] = KEY) -> GatewayClient:
        return GatewayClient(self.url, *key, retries=0)

    def drop(self, day: date, *projects: str, slot: str = "main", build_id: str = "b1", **index: object) -> None:
        """A build with one small archive for each project. `index`: more members of its index."""
        build = Build(str(day), slot=slot, build_id=build_id, index=index)
        for project in projects:
            build.add(project, "x86_64", tree({"bin/run": project.encode(), "lib/same": b"same"}))
        build.store_in(self.builds)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[CompatSite]:
    """The site, its repository empty; the environment of this process leads to it meanwhile."""
    shutil.copytree(keys_folder(), folder / "keys")
    for name in ("store", "builds", "var"):
        (folder / name).mkdir()
    store = FileStore(folder / "store" / FQRN)
    create_repository(store, FQRN, master=master(), signer=signer(), now=datetime.now(UTC))
    repository = RepositoryConfig(lambda: store, signer, (AcceptedKey(*KEY),))
    administrator = AcceptedKey(*ADMINISTRATOR, admin=True)
    config = ServiceConfig(
        folder / "gateway.db", {FQRN: repository}, port=0, max_lease_time_s=LEASE_S, keys=(administrator,)
    )
    ready, stop, urls = threading.Event(), threading.Event(), list[str]()

    def listening(url: str) -> None:
        urls.append(url)
        ready.set()

    thread = threading.Thread(target=lambda: serve(config, ready=listening, stop=stop), daemon=True)
    thread.start()
    try:
        assert ready.wait(120), "the gateway did not start"
        port = int(urls[0].rpartition(":")[2].partition("/")[0])
        file = folder / "site.yaml"
        file.write_text(CONFIGURATION.format(folder=folder, fqrn=FQRN))
        environment = {
            "NIGHTSHIFT_CONFIG": str(file),
            "AIRFLOW_CONN_GATEWAY": _connection(KEY, port),
            "AIRFLOW_CONN_GATEWAY_ADMIN": _connection(ADMINISTRATOR, port),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            yield CompatSite(folder, urls[0], {**os.environ})
    finally:
        stop.set()
        thread.join(20)


def _connection(key: tuple[str, str], port: int) -> str:
    known = {"conn_type": "cvmfs_gateway", "host": "127.0.0.1", "port": port, "login": key[0], "password": key[1]}
    return json.dumps(known)
