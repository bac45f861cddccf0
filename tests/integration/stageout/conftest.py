"""The transfer loop, with a ledger in SQLite, an FTS server over HTTP and storages in memory; and real storages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.davserver import DavServer
from tests.fakes.ftsserver import FtsServer
from tests.fakes.ledgers import from_a_template
from tests.fakes.transferloop import TransferLoop


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[TransferLoop]:
    """Stage-out without transfers."""
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.MonkeyPatch.context() as patch, FtsServer() as server:
        from_a_template(patch)
        migrate(ledger)
        loop = TransferLoop(ledger, server)
        yield loop
        loop.close()
    ledger.dispose()


@pytest.fixture
def dav() -> Iterator[DavServer]:
    """A WebDAV server with two users' files."""
    files = {
        "/cms/temp/user/ann/a.root": b"hello\n",
        "/cms/temp/user/ann/sub/b c.root": b"",
        "/cms/temp/user/bob/c.root": b"bob's",
    }
    with DavServer(files) as server:
        yield server


def site_between(
    folder: Path,
    fts_url: str,
    urls: Mapping[str, str],
    *,
    stageout: Mapping[str, object] | None = None,
    connections: Mapping[str, object] | None = None,
    **fields: Mapping[str, object],
) -> Site:
    """A deployment whose sites have these URLs for `/store`, and more fields, by their names."""
    sites: dict[str, object] = {}
    for name, url in urls.items():
        rules = [{"prefix": "/store", "url": url}]
        plain = {"read": rules, "write": rules, "third_party": rules, "temporary": "/store/temp", "clean": True}
        sites[name] = {**plain, **fields.get(name, {})}
    settings: dict[str, object] = {
        "ledger": f"sqlite:///{folder}/ledger.db",
        "paths": {"var": str(folder)},
        "sites": sites,
    }
    settings |= {"stageout": stageout} if stageout else {}
    (folder / "site.yaml").write_text(json.dumps(settings))
    environment = {**os.environ, "NIGHTSHIFT_CONFIG": str(folder / "site.yaml")}
    every = {"fts_default": {"conn_type": "fts", "host": fts_url}, **(connections or {})}
    variables = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in every.items()}
    return Site(load(environ=environment), EnvSecrets(variables))
