"""`nightshift repo` at a site of its own: a store in a folder, a real gateway and its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from include.cli.main import assemble
from include.cli.repo import app
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.keys import save_master, save_signer
from include.gateway.service.config import AcceptedKey
from include.storage.file import FileStore
from tests.fakes.apart import one_repository, port_of, running_gateway
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, MASTER, SIGNER, LiveSite


def nightshift(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(assemble(words), list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def as_json(*words: str, code: int = 0) -> Any:
    return json.loads(nightshift(*words, "--json", code=code).stdout)


class Commands:
    """`nightshift repo` at a site of its own, as whoever types it."""

    def __init__(self, site: LiveSite) -> None:
        self.site = site

    def __call__(self, *words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def tree(self, name: str = "tree", **files: str) -> str:
        folder = self.site.folder / name
        for path, text in (files or {"a/one": "1", "a/two": "2", "top": "t"}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return str(folder)

    def sound(self) -> None:
        assert self("check", FQRN, "--full").stdout.splitlines()[-1] == "no problems found"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Commands]:
    store = FileStore(tmp_path / "store" / FQRN)
    algorithm = getattr(request, "param", Algorithm.SHA1)
    site = LiveSite(tmp_path, store, (tmp_path / "store" / FQRN).as_uri(), algorithm=algorithm)
    site.create()
    keys = tmp_path / "keys"
    save_master(keys, FQRN, MASTER)
    (tmp_path / "site.yaml").write_text(
        f"""
ledger: "sqlite:///{tmp_path}/ledger.db"
paths: {{var: "{tmp_path}/var"}}
gateway: {{host: 127.0.0.1, port: 4929, max_lease_time_s: 60, state: "{tmp_path}/g.db", keys: "{keys}"}}
stores:
  files: {{url: "{(tmp_path / "store").as_uri()}"}}
repositories:
  {FQRN}:
    store: files
    public_url: "{site.public_url}"
    public_key: "{keys}/{FQRN}.pub"
    gateway: gateway_test
"""
    )
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    signing = tmp_path / "signing"  # the gateway's; tests take away those of the command
    save_signer(signing, FQRN, SIGNER)
    read_config = partial(one_repository, tmp_path, FQRN, store, AcceptedKey(KEY_ID, SECRET), keys=signing)
    with running_gateway(read_config) as site.url:
        connection = {"conn_type": "http", "host": "127.0.0.1", "port": port_of(site.url)}
        key = {"login": KEY_ID, "password": SECRET}
        monkeypatch.setenv("AIRFLOW_CONN_GATEWAY_TEST", json.dumps({**connection, **key}))
        yield Commands(site)
        site.close()
