"""`nightshift settings`: the commands, and the rule about stores that ignore conditional replace."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from include.cli.settings import app
from include.settings.traits import require_single_writer
from include.storage.options import Traits

KEEPS = Traits(put_if_absent=True, replace=True, bulk_delete=True)
IGNORES = Traits(put_if_absent=True, replace=False, bulk_delete=True)


@pytest.fixture
def site_file(tmp_path, monkeypatch):
    """A configuration on file stores, in force for this test."""
    path = tmp_path / "site.yaml"
    text = """\
ledger: "sqlite:///ledger.db"
stores: {main: {url: "file:store"}}
repositories:
  n.example.org: {store: main, public_url: "file:store/n.example.org", public_key: k.pub, gateway: gw}
"""
    path.write_text(text)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(path))
    monkeypatch.setenv("AIRFLOW_CONN_GW", '{"host": "h", "login": "key", "password": "hunter2"}')
    monkeypatch.delenv("NIGHTSHIFT_LEDGER_URL", raising=False)
    return path


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_one_writer_needs_nothing_of_the_store():
    for traits in (None, KEEPS, IGNORES):
        assert require_single_writer(traits, store="s", repository="r", writers=["a"]).allowed


def test_two_writers_need_conditional_replace():
    assert require_single_writer(KEEPS, store="s", repository="r", writers=["a", "b"]).allowed
    verdict = require_single_writer(IGNORES, store="s", repository="r", writers=["a", "b"])
    assert not verdict.allowed
    assert "store s ignores conditional replace" in verdict.reason
    untried = require_single_writer(None, store="s", repository="r", writers=["a", "b"])
    assert not untried.allowed
    assert "settings check" in untried.reason


def test_a_right_configuration_passes(site_file):
    done = run("check", "--no-stores")
    assert done.exit_code == 0, done.output
    assert "no problems found" in done.output
    assert "hunter2" not in done.output


def test_a_wrong_configuration_fails_with_its_lines(site_file):
    site_file.write_text(site_file.read_text().replace("store: main", "store: mian") + "colour: red\n")
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    assert f"{site_file}:4: repositories.n.example.org.store: there is no 'mian'" in done.output
    assert f"{site_file}:5: colour" in done.output


def test_a_missing_connection_fails(site_file, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_GW")
    done = run("check", "--no-stores", "--json")
    document = json.loads(done.output)
    assert done.exit_code == 1
    assert not document["good"]
    assert "AIRFLOW_CONN_GW" in next(one["problem"] for one in document["checked"] if one["problem"])


def test_show_writes_what_is_understood(site_file, tmp_path):
    assert f"file://{tmp_path}/store" in run("show").output
    assert json.loads(run("show", "--json").output)["gateway"]["port"] == 4929
