"""`nightshift settings check` on stores: a folder, and a real S3 server."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from include.cli.settings import app
from include.ledger.engine import open_ledger
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.settings.traits import open_site_ledger, record_traits, recorded_traits
from include.storage.kinds import Traits
from include.storage.open import open_store

TEXT = """\
ledger: "sqlite:///ledger.db"
stores:
  main: {STORE}
repositories:
  n.example.org: {store: main, public_url: "PUBLIC/n.example.org", public_key: k.pub, gateway: gw, manifest_writers: 2}
"""


@pytest.fixture
def in_force(tmp_path, monkeypatch):
    """Puts a configuration with one store in force."""

    def put(store: str, public: str) -> None:
        (tmp_path / "site.yaml").write_text(TEXT.replace("{STORE}", store).replace("PUBLIC", public))

    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", "site.yaml")
    monkeypatch.delenv("NIGHTSHIFT_LEDGER_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_GW", '{"host": "h", "login": "key", "password": "hunter2"}')
    return put


def check():
    done = CliRunner().invoke(app, ["check", "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    document = json.loads(done.output)
    assert done.exit_code == (0 if document["good"] else 1)
    assert "hunter2" not in done.output
    return document, {one["kind"]: one for one in document["checked"]}


def recorded():
    site = load()
    return recorded_traits(open_ledger(site.ledger), site.store("main"))


def test_a_folder_keeps_everything_which_is_recorded_and_what_killed_writers_left_is_noted(in_force, tmp_path):
    in_force('{url: "file:store"}', "file:store")
    document, by_kind = check()
    assert document["good"], document
    assert "replace-if-unchanged kept" in by_kind["store"]["seen"]
    assert recorded().replace
    assert list(open_store(f"file://{tmp_path}/store").list()) == []
    left = tmp_path / "store/.~left"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    document, by_kind = check()
    assert document["good"]
    assert [note for note in by_kind["store"]["notes"] if "1 unfinished file" in note and "repo repair" in note]


@pytest.mark.server("weed")
def test_an_s3_server_is_tried_whatever_an_earlier_trial_saw_and_what_it_keeps_is_recorded(
    in_force, weed, s3_prefix, monkeypatch
):
    connection = {"login": weed.credentials.access_key, "password": weed.credentials.secret_key}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    in_force(
        f'{{url: "s3://nights/{s3_prefix}", endpoint: "{weed.endpoint}", connection: store}}',
        weed.public_url("nights", s3_prefix),
    )
    site = load()
    nothing = Traits(put_if_absent=False, replace=False, bulk_delete=False)
    record_traits(open_site_ledger(site, EnvSecrets()), site.store("main"), nothing, now=datetime.now(UTC))
    document, _ = check()
    assert document["good"], document
    traits = recorded()
    assert (traits.put_if_absent, traits.replace, traits.bulk_delete, traits.anonymous_read) == (True,) * 4
    assert weed.credentials.secret_key not in json.dumps(document)


@pytest.mark.server("weed")
def test_a_wrong_secret_is_a_problem_of_that_store_and_its_writers(in_force, weed, s3_prefix, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_STORE", '{"login": "nightshift", "password": "hunter2"}')
    in_force(
        f'{{url: "s3://nights/{s3_prefix}", endpoint: "{weed.endpoint}", connection: store}}',
        weed.public_url("nights", s3_prefix),
    )
    document, by_kind = check()
    assert not document["good"]
    assert "connection" in by_kind["store"]["problem"]
    assert "has not been tried" in by_kind["repository"]["problem"]
    assert recorded() is None
