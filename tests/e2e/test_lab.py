"""What `nightshift lab up` brings up with Airflow, on the deployment: its pools, its users, no secret to be seen."""

from __future__ import annotations

import ipaddress
import subprocess
from typing import Any

import psutil
import pytest
import requests

from include.airflow_api import AirflowApi, AirflowError
from include.monitoring.airflow_checks import look_at_pools
from include.monitoring.findings import Severity
from include.settings.load import load
from include.settings.scheduling import pools
from include.settings.secrets import EnvSecrets
from lab import lifecycle
from lab.environment import ADMIN, VIEWER
from lab.services import services
from lab.supervise import ProcessState, marked_processes
from tests.e2e.deployment import Deployment
from tests.fakes import labsecrets
from tests.fakes.refused import refused

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]


def test_every_listening_socket_is_on_loopback_and_on_a_port_of_the_lab(deployment: Deployment) -> None:
    ours, lab = marked_processes(deployment.place), deployment.lab
    seen = {
        (one.laddr.ip, one.laddr.port): one.pid
        for one in psutil.net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN and one.pid in ours
    }
    assert not {place: pid for place, pid in seen.items() if not ipaddress.ip_address(place[0]).is_loopback}
    ports = {name for service in services(lab, airflow=True) for name in service.ports}
    assert {port for _, port in seen} == {getattr(lab.ports, name) for name in ports}


def test_all_services_answer_and_a_second_start_changes_none(deployment: Deployment) -> None:
    before = {one.name: one for one in lifecycle.status(deployment.lab)}
    assert before.keys() == {one.name for one in services(deployment.lab, airflow=True)}
    assert {one.name: one.wrong for one in before.values() if not one.good} == {}
    assert {one.state for one in before.values()} == {ProcessState.RUNNING}
    timings = lifecycle.up(deployment.lab, airflow=True, say=print)
    assert "airflow db migrate" not in timings.steps
    assert {one.name: one.pid for one in lifecycle.status(deployment.lab)} == {
        one.name: one.pid for one in before.values()
    }


def test_no_dag_fails_to_be_read_and_a_wrong_password_is_refused(deployment: Deployment) -> None:
    assert not deployment.api.import_errors()
    with refused(AirflowError):
        AirflowApi(deployment.lab.airflow_url, ADMIN, "guess").import_errors()


def test_the_user_of_preflight_sees_the_pools_and_changes_none(deployment: Deployment) -> None:
    lab = deployment.lab
    # as the configuration in config/ has it: that of the deployment asks no Airflow
    environment = lab.environment({name: one for name, one in lab.base.items() if name != "NIGHTSHIFT_CONFIG"})
    site = load(environ=environment)
    found = {one.subject: one.severity for one in look_at_pools(site, EnvSecrets(environment))}
    assert found == {pool.name: Severity.OK for pool in pools(site)}
    viewer = AirflowApi(lab.airflow_url, VIEWER, lab.secrets.viewer_password)
    with pytest.raises(AirflowError, match="403"):
        viewer.put_pool({"name": "control", "slots": 1, "description": "", "include_deferred": False})


def test_health_takes_a_login_or_the_token_and_figures_the_token_alone(deployment: Deployment) -> None:
    lab = deployment.lab
    login = {"username": VIEWER, "password": lab.secrets.viewer_password}
    key = requests.post(f"{lab.airflow_url}/auth/token", json=login, timeout=30).json()["access_token"]

    def get(path: str, **given: Any) -> requests.Response:
        return requests.get(f"{lab.airflow_url}/nightshift/{path}", timeout=60, **given)

    nothing: dict[str, Any] = {}
    cookie = {"cookies": {"_token": key}}
    bearer = {"headers": {"Authorization": f"Bearer {key}"}}
    wrong = {"headers": {"Authorization": "Bearer guess"}}
    token = {"headers": {"Authorization": f"Bearer {lab.secrets.metrics_token}"}}
    answers = {"nothing": nothing, "cookie": cookie, "bearer": bearer, "wrong": wrong, "token": token}
    assert {name: get("health", **given).status_code for name, given in answers.items()} == {
        "nothing": 401, "cookie": 200, "bearer": 200, "wrong": 401, "token": 200,
    }  # fmt: skip
    assert {name: get("metrics", **given).status_code for name, given in answers.items()} == {
        "nothing": 401, "cookie": 401, "bearer": 401, "wrong": 401, "token": 200,
    }  # fmt: skip
    up = [line for line in get("metrics", **token).text.splitlines() if line.startswith("nightshift_part_up{")]
    assert len(up) == 5
    assert all(line.endswith(" 1.0") for line in up), up


def test_each_process_has_the_credentials_of_its_service_alone(deployment: Deployment) -> None:
    _, credentials, _ = lifecycle.split_environment(deployment.lab)
    every = {name for held in credentials.values() for name in held}
    for service in lifecycle.status(deployment.lab):
        group = [psutil.Process(service.pid), *psutil.Process(service.pid).children(recursive=True)]
        seen = {name for process in group for name in every & process.environ().keys()}
        assert seen == credentials.get(service.name, {}).keys(), service.name


def test_no_secret_is_in_the_process_table(deployment: Deployment) -> None:
    seen = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    for name, secret in labsecrets.by_name(deployment.lab.secrets).items():
        assert secret not in seen, name
