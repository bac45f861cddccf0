"""`nightshift init` on a real S3 server and behind a stock gateway, and the first build of its configuration."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from include.cli import settings
from include.cli.init import _earlier, init
from include.cli.main import assemble
from include.cvmfs.format.keys import GatewayKey, save_gateway_key
from include.nightlies.steps.sources import read_index
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.bootstrap import found_repository
from include.site.site import Site
from lab.servers.weed import WeedServer
from tests.fakes.emptyhome import empty_home
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.stocksite import StockSite
from tests.site import FQRN, PUBLIC_KEY

OWN = "software.example.org"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty environment."""
    return empty_home(tmp_path, monkeypatch)


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockSite]:
    site = StockSite(tmp_path / "stock").with_gateway()
    yield site
    site.stop()


def refused(capsys: pytest.CaptureFixture[str], home: Path, **answers: Any) -> str:
    """Return why; nothing was written."""
    with pytest.raises(typer.Exit) as ended:
        init(**answers)
    assert ended.value.exit_code == 2
    assert not [path for path in home.rglob("*") if path.is_file()]
    return capsys.readouterr().err


def nightshift(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(assemble(words), list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def adopt(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _earlier(file).items():
        monkeypatch.setenv(name, value)


@pytest.mark.server("weed")
def test_an_empty_s3_has_its_buckets_made_only_if_asked_and_takes_a_build(
    home: Path, weed: WeedServer, s3_prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        "repository": OWN, "store": f"s3://own-{s3_prefix}", "index": f"s3://builds-{s3_prefix}/in/{{date}}/i.json",
        "slot": "main", "endpoint": weed.endpoint,
    }  # fmt: skip
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", weed.credentials.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert f"--store: s3://own-{s3_prefix} cannot be used" in refused(capsys, home, **answers, make_buckets=True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", weed.credentials.secret_key)
    init(**answers, make_buckets=True, dry_run=True)
    assert weed.credentials.secret_key not in capsys.readouterr().out
    reason = refused(capsys, home, **answers)
    assert f"--store: there is no bucket for s3://own-{s3_prefix} at {weed.endpoint}" in reason
    silent = {**answers, "endpoint": "http://127.0.0.1:1"}
    assert "cannot be used" in refused(capsys, home, **silent)
    init(**answers, make_buckets=True)
    assert weed.credentials.secret_key not in (home / f"config/{OWN}.yaml").read_text() + capsys.readouterr().out
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    adopt(home / f"var/{OWN}.env", monkeypatch)
    init(**answers)
    assert capsys.readouterr().out.count("unchanged") == 2
    document = {finding.subject: finding for finding in settings.check_site(EnvSecrets())}
    assert not [finding for finding in document.values() if finding.severity.value == "error"]
    site = Site(load(), EnvSecrets())
    assert found_repository(site, OWN, say=print)
    assert site.repository(OWN).manifest.revision == 0, "readers see it by the public URL"

    (home / "archives").mkdir()
    with tarfile.open(home / "archives/tool-x86_64-el9.tar.gz", "w:gz") as packed:
        packed.add(home / f"config/{OWN}.yaml", "bin/tool")
    words = ("nightly", "index", str(home / "archives"), "--date", "2026-11-21")
    assert "--upload" in nightshift(*words, code=2).stderr
    nightshift(*words, "--upload")
    assert "unchanged" in nightshift(*words, "--upload").stdout
    index, url = read_index(site, site.settings.slot("main"), date(2026, 11, 21))
    assert url == f"s3://builds-{s3_prefix}/in/2026-11-21/i.json"
    (artifact,) = index.artifacts
    assert site.store("builds").get(artifact.url) == (home / "archives/tool-x86_64-el9.tar.gz").read_bytes()


def test_a_stock_gateway_serves_the_repository_or_it_is_refused(
    home: Path, stock: StockSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = stock.folder / "etc-keys"
    save_gateway_key(keys, FQRN, GatewayKey(KEY_ID, SECRET))
    (keys / f"{FQRN}.pub").write_bytes(PUBLIC_KEY)
    (home / "builds").mkdir()
    answers = {
        "repository": FQRN, "store": stock.store.url.removesuffix(f"/{FQRN}"), "index": "builds", "slot": "main",
        "gateway": stock.gateway.url, "gateway_key": keys / f"{FQRN}.gw", "public_key": str(keys / f"{FQRN}.pub"),
    }  # fmt: skip
    (home / "builds").rmdir()
    assert "there is no folder" in refused(capsys, home, **answers)
    (home / "builds").mkdir()
    other = {**answers, "repository": OWN}
    assert f"--gateway: it serves {FQRN}" in refused(capsys, home, **other)
    assert "--gateway-key" in refused(capsys, home, **{**answers, "gateway_key": keys / "absent.gw"})
    init(**answers)
    commands = capsys.readouterr().out
    assert "repo create" not in commands, "its keys and its first revision are made behind that gateway"
    adopt(home / f"var/{FQRN}.env", monkeypatch)
    site = Site(load(), EnvSecrets())
    with site.gateway(FQRN) as gateway:
        gateway.drop(gateway.acquire(FQRN, "/nightlies", hostname="test"))
        assert not gateway.judges_bases()
    assert json.loads(os.environ["AIRFLOW_CONN_GATEWAY"])["password"] == SECRET
