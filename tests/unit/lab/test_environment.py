"""The environment of the lab's programs: complete, the same for all, and nothing secret outside of it."""

import configparser
import importlib.util
import json
import runpy
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from include.monitoring import store_checks
from include.settings.errors import MissingConnection
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from lab.commands.services import app as lab_commands
from lab.environment import MARK, ROOT, Lab, LabFolders, adopt
from lab.errors import LabError
from lab.lifecycle import disks
from lab.ports import Ports
from lab.secrets import LabSecrets
from tests.fakes import labsecrets
from tests.fakes.refused import refused

STORES = ("CVMFS", "CVMFS_GATEWAY", "CVMFS_COLLECTOR", "BUILDS", "STAGEOUT")
OTHERS = {
    f"AIRFLOW_CONN_{name}"
    for name in ("METRICS", "GATEWAY_NIGHTLIES", "GATEWAY_ADMIN", "AIRFLOW_API", "AIRFLOW_RUNS", "FTS_DEFAULT")
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(LabFolders(tmp_path / "var"), Ports(), LabSecrets.generate())


def test_connections_follow_the_site_configuration_and_leave_real_ones_alone(lab: Lab) -> None:
    made = lab.connections({})
    assert made.keys() == {f"AIRFLOW_CONN_STORE_{name}" for name in STORES} | OTHERS
    gateway = json.loads(made["AIRFLOW_CONN_GATEWAY_NIGHTLIES"])
    assert (gateway["port"], gateway["login"]) == (lab.ports.gateway, lab.secrets.gateway_key_id)
    assert "AIRFLOW_CONN_STORE_CVMFS" not in lab.connections({"AIRFLOW_CONN_STORE_CVMFS": "s3://real"})


def test_an_id_that_may_be_mistyped_is_not_defined_by_the_lab(lab: Lab, tmp_path: Path) -> None:
    text = (ROOT / "config/site.yaml").read_text()
    file = tmp_path / "site.yaml"
    file.write_text(text.replace("connection: store_cvmfs", "connection: store_cvmsf"))
    environment = {"NIGHTSHIFT_CONFIG": str(file)}
    made = lab.connections(environment)
    assert "AIRFLOW_CONN_STORE_CVMSF" not in made
    with refused(MissingConnection, connection_id="store_cvmsf", similar="store_cvmfs"):
        EnvSecrets(made).get("store_cvmsf")
    file.write_text(text.replace("connection: store_", "connection: store #").replace("gateway_nightlies", "gateway"))
    assert {"AIRFLOW_CONN_STORE", "AIRFLOW_CONN_GATEWAY"} <= lab.connections(environment).keys()
    file.write_text(text.replace("store_cvmfs", "shared").replace("store_builds", "shared"))
    assert "AIRFLOW_CONN_SHARED" in lab.connections(environment)


def test_the_lab_s_gateway_stays_on_loopback_and_a_store_elsewhere_gets_none_of_its_keys(lab: Lab) -> None:
    elsewhere = {"NIGHTSHIFT_GATEWAY_HOST": "0.0.0.0", "NIGHTSHIFT_S3_HOST": "ceph.example.org"}
    assert lab.environment(elsewhere)["NIGHTSHIFT_GATEWAY_HOST"] == "127.0.0.1"
    assert lab.connections(elsewhere).keys() == OTHERS


def test_a_disk_that_is_full_is_named_with_the_folders_on_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=900 << 30, total=1000 << 30))
    assert disks(lab) == []
    monkeypatch.setattr(store_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30, total=1000 << 30))
    found = disks(lab)
    assert "logs" in {name for one in found for name in one.subject.split(", ")}
    assert any(str(lab.place.airflow_home / "logs") in one.seen for one in found)


def test_who_looks_at_pools_may_change_nothing_and_prometheus_has_a_token_of_its_own(lab: Lab) -> None:
    asks = json.loads(lab.connections({})["AIRFLOW_CONN_AIRFLOW_API"])
    assert f"{asks['login']}:viewer" in lab.airflow_settings()["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"].split(",")
    assert asks["port"] == lab.ports.airflow
    token = json.loads(lab.connections({})["AIRFLOW_CONN_METRICS"])["password"]
    assert len(token) >= 32
    assert not {asks["password"], token} & {*asdict(lab.secrets).values()}
    assert token != lab.secrets.viewer_password
    inside, outside = load(environ={**lab.places()}), load(environ={})
    assert (inside.airflow_connection, inside.metrics_connection) == ("airflow_api", "metrics")
    # without a lab nobody is asked, and preflight says so
    assert (outside.airflow_connection, outside.metrics_connection) == (None, None)


def test_settings_of_another_airflow_do_not_leak_in_and_urls_follow_the_port(lab: Lab) -> None:
    environment = lab.environment({"AIRFLOW__CORE__EXECUTOR": "Other", "AWS_PROFILE": "other", "HOME": "/home/me"})
    assert not {"AIRFLOW__CORE__EXECUTOR", "AWS_PROFILE"} & environment.keys()
    assert (environment["HOME"], environment[MARK]) == ("/home/me", str(lab.place.var))
    moved = Lab(lab.place, Ports(airflow=9999), lab.secrets).environment({})
    assert moved["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:9999/execution/"
    assert moved["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:9999"
    assert moved["AIRFLOW__CORE__TEST_CONNECTION"] == "Enabled", "and nowhere else unasked"


def test_airflow_s_file_holds_no_secret_and_only_names_that_airflow_knows() -> None:
    # Found, not imported: an import would make a home folder for Airflow.
    airflow = importlib.util.find_spec("airflow")
    assert airflow
    assert airflow.origin
    installed = Path(airflow.origin).parent
    celery = runpy.run_path(str(installed / "providers/celery/get_provider_info.py"))["get_provider_info"]()
    known = yaml.safe_load((installed / "config_templates/config.yml").read_text()) | celery["config"]
    ours = configparser.ConfigParser(interpolation=None)
    ours.read(ROOT / "airflow.cfg")
    assert ours["core"]["test_connection"] == "Disabled"
    for section in ours.sections():
        for name in ours[section]:
            assert name in known[section]["options"], f"[{section}] {name}"
            assert not known[section]["options"][name].get("sensitive"), f"[{section}] {name}"


def test_a_deep_state_folder_has_short_sockets_and_a_relative_one_is_below_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", f"{short}/t")
        for depth in range(40, 90):
            folders = LabFolders(Path(short) / ("d" * depth) / "var")
            folders.make()
            with socket.socket(socket.AF_UNIX) as control:  # with a pid at its end, as supervisord makes it
                control.bind(f"{folders.sockets}/supervisor.sock.{2**22}")
        assert folders.sockets == LabFolders(folders.var).sockets
        assert folders.sockets != LabFolders(Path(short) / ("e" * depth) / "var").sockets
    monkeypatch.chdir(tmp_path)
    assert LabFolders.from_environment({"NIGHTSHIFT_VAR": "other"}).var == ROOT / "other"


def test_a_command_adopts_the_lab_that_is_there_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    environment = {"NIGHTSHIFT_VAR": str(tmp_path), "NIGHTSHIFT_S3_PORT": "9000"}
    adopt(environment)
    assert "AIRFLOW_CONN_STORE_CVMFS" not in environment  # no lab was made there
    Lab.from_environment(environment)
    adopt(environment)
    assert json.loads(environment["AIRFLOW_CONN_STORE_CVMFS"])["port"] == 9000


def test_a_folder_of_dags_of_ones_own_is_read_beside_ours(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
    assert name not in lab.environment({})
    monkeypatch.setenv("NIGHTSHIFT_DAGS", str(tmp_path))
    assert lab.shell()[name] == lab.environment()[name]
    bundles = {one["name"]: one["kwargs"] for one in json.loads(lab.environment()[name])}
    assert bundles == {"dags-folder": {}, "own": {"path": str(tmp_path)}}


def test_a_shell_gets_what_airflows_commands_need_and_no_other_secret(lab: Lab) -> None:
    given = lab.shell()
    text = json.dumps(given)
    secrets = labsecrets.by_name(lab.secrets)
    inside = {name for name, secret in secrets.items() if secret in text}
    assert inside == {"airflow_database_password", "fernet_key"}
    assert given["AIRFLOW_HOME"] == str(lab.place.airflow_home)
    assert MARK not in given, "what a shell starts is not ended with the lab"


def test_the_lines_for_a_shell_say_what_is_secret_and_are_taken_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_VAR", str(tmp_path / "with space"))
    missing = CliRunner().invoke(lab_commands, ["env"])
    assert isinstance(missing.exception, LabError)
    assert "make up" in str(missing.exception)
    lab = Lab.from_environment()
    printed = CliRunner().invoke(lab_commands, ["env"]).output
    assert printed.startswith("# two secrets: ")
    bash = subprocess.run(
        ["bash", "-uc", 'eval "$1"; printenv NIGHTSHIFT_VAR AIRFLOW_HOME; type -P nightshift', "-", printed],
        capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    var = str(tmp_path / "with space")
    assert bash.stdout.splitlines()[:2] == [var, str(lab.place.airflow_home)]
    assert bash.stdout.splitlines()[2] == str(Path(sys.executable).parent / "nightshift")


def test_airflows_command_gets_its_words_and_the_labs_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_VAR", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "of another installation")
    lab, seen = Lab.from_environment(), list[Any]()
    monkeypatch.setattr("os.execve", lambda *given: seen.append(given))
    CliRunner().invoke(lab_commands, ["airflow", "dags", "trigger", "x", "--conf", "{}", "--help"])
    ((program, words, environment),) = seen
    assert (Path(program).name, words[1:]) == ("airflow", ["dags", "trigger", "x", "--conf", "{}", "--help"])
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == lab.shell()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert "AIRFLOW__CORE__EXECUTOR" not in environment
    assert MARK not in environment
