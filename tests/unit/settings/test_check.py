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


def test_a_missing_file_is_named_once_with_the_cure(site_file):
    site_file.unlink()
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    problem = next(line for line in done.output.splitlines() if "no such configuration file" in line)
    assert problem.count(str(site_file)) == 1
    assert "NIGHTSHIFT_CONFIG" in problem


def test_long_lines_are_neither_cut_nor_folded_in_a_pipe(site_file):
    folder = "d" * 150
    site_file.write_text(site_file.read_text().replace("k.pub", f"{folder}/k.pub"))
    line = next(line for line in run("check", "--no-stores").output.splitlines() if "public key" in line)
    assert f"{folder}/k.pub (not there yet)" in line


@pytest.mark.parametrize("url", ["http://h/cvmfs", "https://h/cvmfs"])
def test_a_repository_on_a_store_that_can_only_be_read_is_a_problem(site_file, url):
    site_file.write_text(
        site_file.read_text().replace("file:store}}", f"{url}}}}}").replace('"file:store"', f'"{url}"')
    )
    for words in (["--no-stores"], []):
        done = run("check", *words)
        assert done.exit_code == 1
        assert f"repository n.example.org: store main, {url}, can only be read" in done.output


def test_a_gateway_without_an_address_is_a_problem(site_file, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_GW", '{"login": "key", "password": "hunter2"}')
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    assert "AIRFLOW_CONN_GW names no host" in done.output
    assert "hunter2" not in done.output


def test_a_ledger_that_cannot_be_used_is_shown_as_it_is_in_force_without_its_password(site_file, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_LEDGER_URL", "mysql+pymysql://keeper:hunter2@127.0.0.1:1/nights")
    done = run("check")
    assert done.exit_code == 1
    assert "ledger mysql+pymysql://keeper:***@127.0.0.1:1/nights: " in done.output
    assert "hunter2" not in done.output
    assert "replace-if-unchanged kept" in done.output, "the stores are tried all the same"


def test_a_ledger_where_no_folder_can_be_made_is_a_problem(site_file, tmp_path, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_LEDGER_URL", f"sqlite:///{site_file}/ledger.db")
    done = run("check", "--no-stores")
    assert done.exit_code == 1
    assert f"ledger sqlite:///{site_file}/ledger.db: " in done.output


def test_show_writes_what_is_understood(site_file, tmp_path):
    assert f"file://{tmp_path}/store" in run("show").output
    assert json.loads(run("show", "--json").output)["gateway"]["port"] == 4929
