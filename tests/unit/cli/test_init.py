"""`nightshift init` in folders: what it writes, that it replaces nothing, and what it refuses before it writes."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from include.cli import settings
from include.cli.init import _earlier
from include.cli.main import assemble
from include.cvmfs.format.keys import GatewayKey, save_gateway_key
from include.settings.load import load
from tests.fakes.emptyhome import empty_home

FQRN = "software.example.org"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty environment, with a folder of builds."""
    home = empty_home(tmp_path, monkeypatch)
    (home / "builds").mkdir()
    return home


def run(*words: str, answers: str = "") -> Result:
    return CliRunner().invoke(assemble(["init"]), ["init", *words], input=answers)


def answered(home: Path, *words: str, **other: str) -> Result:
    given = {"repository": FQRN, "store": "store", "index": str(home / "builds"), "slot": "main", **other}
    return run(*(f"--{name.replace('_', '-')}={value}" for name, value in given.items()), *words)


def files(home: Path) -> dict[str, str]:
    return {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}


def test_the_configuration_passes_settings_check_and_no_secret_is_in_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = answered(home)
    assert done.exit_code == 0, done.output
    assert files(home).keys() == {f"config/{FQRN}.yaml", f"var/{FQRN}.env"}
    secrets = home / f"var/{FQRN}.env"
    assert secrets.stat().st_mode & 0o777 == 0o600
    variables = _earlier(secrets)
    for connection in (variables["AIRFLOW_CONN_GATEWAY"], variables["AIRFLOW_CONN_GATEWAY_ADMIN"]):
        assert json.loads(connection)["password"] not in done.output + files(home)[f"config/{FQRN}.yaml"]
    commands = done.output.partition("Next")[2].splitlines()[1:]
    assert len(commands) == 3
    assert commands[2].endswith(f"repo create {FQRN}")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checked = CliRunner().invoke(settings.app, ["check", "--json"])
    assert json.loads(checked.output)["good"], checked.output
    site = load()
    assert site.repository(FQRN).public_url == f"file://{home}/store/{FQRN}"
    assert site.repository(FQRN).public_key == home / f"var/keys/{FQRN}.pub"
    assert (site.slot("main").index, site.slot("main").schedule) == ("{slot}/{date}/index.json", "30 1 * * *")


def test_the_file_of_secrets_is_one_for_a_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'it\'s $HOME "quoted" \\ `date`'
    monkeypatch.setenv("AIRFLOW_CONN_GATEWAY", json.dumps({"host": "127.0.0.1", "login": "k", "password": secret}))
    assert answered(home).exit_code == 0
    read = f'set -a; . {shlex.quote(str(home / "var" / f"{FQRN}.env"))}; printf %s "$AIRFLOW_CONN_GATEWAY"'
    with os.popen(f"sh -c {shlex.quote(read)}") as shell:
        assert json.loads(shell.read())["password"] == secret


def test_the_same_answers_change_nothing_and_others_replace_no_file(home: Path) -> None:
    assert answered(home).exit_code == 0
    config = home / f"config/{FQRN}.yaml"
    made_last_year = re.sub(r"start: \S+", "start: 2025-01-01", config.read_text())
    config.write_text(made_last_year)
    before = files(home)
    again = answered(home)
    assert again.exit_code == 0, again.output
    assert again.output.count("unchanged") == 2
    assert files(home) == before
    other = answered(home, slot="other")
    assert other.exit_code == 2
    assert "exists and is not what these answers make" in other.output
    assert "--config" in other.output
    assert files(home) == before
    assert answered(home, slot="other", config="config/other.yaml").exit_code == 0
    assert files(home).keys() - before.keys() == {"config/other.yaml", "var/other.env"}


def test_a_dry_run_shows_the_configuration_and_writes_nothing(home: Path) -> None:
    done = answered(home, "--dry-run")
    assert done.exit_code == 0, done.output
    assert f"  {FQRN}:" in done.output
    assert "AIRFLOW_CONN_GATEWAY" in done.output
    assert '"password"' not in done.output
    assert files(home) == {}


def test_it_asks_for_what_no_option_gives(home: Path) -> None:
    done = run(answers=f"{FQRN}\nstore\n{home}/builds/{{date}}/list.json\n\n")
    assert done.exit_code == 0, done.output
    slot = load(home / f"config/{FQRN}.yaml").slot("main")
    assert slot.index == "{date}/list.json"
    silent = run("--repository", FQRN)
    assert silent.exit_code == 2
    assert "give --store" in silent.output


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("repository", "Software Repository", "is not a repository name. Write a fully qualified name"),
        ("slot", "a/b", "Rename it"),
        ("store", "gs://bucket", "--store: not the URL of a store"),
        ("store", "/dev/null/store", "is no folder that this user may write to"),
        ("store", "http://127.0.0.1:1", "can only be read"),
        ("index", "/nowhere/builds", "--index: there is no folder /nowhere/builds"),
        ("index", "builds/index.json", "lacks {date}"),
        ("index", "http://127.0.0.1:1/{slot}/{date}/index.json", "--index: http://127.0.0.1:1 cannot be used"),
        ("public_url", "ftp://x", "--public-url: not an http(s) URL"),
        ("endpoint", "http://[", "--endpoint: "),
        ("schedule", "at noon", "--schedule: not a cron expression"),
        ("timezone", "Atlantis/Capital", "--timezone: the time zone"),
        ("gateway", "http://127.0.0.1:1", "--public-key: there is no file"),
    ],
)
def test_a_bad_answer_is_refused_before_anything_is_written(home: Path, option: str, value: str, words: str) -> None:
    done = answered(home, **{option: value})
    assert done.exit_code == 2, done.output
    assert words in done.output
    assert "Traceback" not in done.output
    assert files(home) == {}


def test_a_gateway_that_exists_is_asked_whether_it_serves_the_repository(home: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    save_gateway_key(keys, FQRN, GatewayKey("key1", "not-a-secret"))
    (keys / f"{FQRN}.pub").write_text("a key")
    given = {"gateway_key": str(keys / f"{FQRN}.gw"), "public_key": str(keys / f"{FQRN}.pub")}
    silent = answered(home, gateway="http://127.0.0.1:1", **given)
    assert (silent.exit_code, files(home)) == (2, {})
    assert "--gateway: " in silent.output
