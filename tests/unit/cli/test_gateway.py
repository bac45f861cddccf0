"""Which keys the embedded gateway takes, from files and from connections."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from include.cli import gateway
from include.cli.gateway import ADMIN_KEY, service_config
from include.cvmfs.format.keys import GatewayKey, save_gateway_key
from include.gateway.service.config import ConfigError
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from tests.fakes.refused import refused

FQRN = "nights.example.org"


@pytest.fixture
def site(tmp_path: Path) -> SiteSettings:
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/ledger.db"\n'
        f"gateway: {{keys: {tmp_path}/keys, state: {tmp_path}/state.db}}\n"
        f'stores: {{cvmfs: {{url: "file://{tmp_path}/cvmfs"}}}}\n'
        f"repositories:\n  {FQRN}:\n    store: cvmfs\n    public_url: http://127.0.0.1:1\n"
        "    public_key: nights.pub\n    gateway: gateway\n    gateway_admin: chief\n"
    )
    return load(file, environ={})


def connection(login: str, password: str, **more: object) -> str:
    return json.dumps({"conn_type": "cvmfs_gateway", "login": login, "password": password, **more})


def test_the_administrator_s_key_comes_from_the_connection_that_a_repository_names(
    site: SiteSettings, tmp_path: Path
) -> None:
    publishers = connection("worker", "of-all", host="127.0.0.1", port=4929)
    secrets = EnvSecrets({"AIRFLOW_CONN_GATEWAY": publishers, "AIRFLOW_CONN_CHIEF": connection("chief", "of-one")})
    config = service_config(site, secrets)
    assert [(key.id, key.admin) for key in config.repositories[FQRN].keys] == [("worker", False)]
    assert [(key.id, key.secret, key.admin) for key in config.keys] == [("chief", "of-one", True)]
    save_gateway_key(tmp_path / "keys", ADMIN_KEY.removesuffix(".gw"), GatewayKey("root", "of-file"))
    assert [key.id for key in service_config(site, secrets).keys] == ["root", "chief"]


def test_without_that_connection_the_gateway_serves_with_the_limits_of_the_configuration(site: SiteSettings) -> None:
    secrets = EnvSecrets({"AIRFLOW_CONN_GATEWAY": connection("worker", "of-all", host="127.0.0.1", port=4929)})
    smaller = site.gateway.model_copy(update={"max_payload_mib": 300})
    for settings, limit in ((site, 4 << 30), (site.model_copy(update={"gateway": smaller}), 300 << 20)):
        config = service_config(settings, secrets)
        assert (config.max_payload_bytes, config.keys) == (limit, ())


def test_repositories_that_are_not_served_are_named_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(
        f"gateway: {{keys: {tmp_path}/keys}}\nstores: {{cvmfs: {{url: 'file://{tmp_path}/cvmfs'}}}}\nrepositories:\n"
        + "".join(
            f"  {name}.example.org: {{store: cvmfs, public_url: 'http://host', public_key: k, gateway: {name}}}\n"
            for name in ("here", "elsewhere", "unnamed", "empty")
        )
    )
    secrets = EnvSecrets(
        {
            "AIRFLOW_CONN_HERE": connection("worker", "secret", host="127.0.0.1", port=4929),
            "AIRFLOW_CONN_ELSEWHERE": connection("worker", "secret", host="gateway.example.org"),
            "AIRFLOW_CONN_EMPTY": connection("", "", host="127.0.0.1", port=4929),
        }
    )
    config = service_config(load(file, environ={}), secrets)
    assert list(config.repositories) == ["here.example.org"]
    keys = tmp_path / "keys"
    assert config.not_served == {
        "elsewhere.example.org": "its connection 'elsewhere' names the gateway gateway.example.org:4929, not this one;"
        f" if it is to be served here, create {keys}/elsewhere.example.org.gw",
        "unnamed.example.org": f"no gateway key: there is neither {keys}/unnamed.example.org.gw nor the connection"
        " 'unnamed'; create one of them",
        "empty.example.org": f"no gateway key: there is no {keys}/empty.example.org.gw, and the connection 'empty'"
        " has no login and password",
    }


def test_without_any_key_it_does_not_start_and_names_the_cure(site: SiteSettings) -> None:
    with refused(ConfigError) as caught:
        service_config(site, EnvSecrets({}))
    assert f"create {site.gateway.keys}/<fqrn>.gw" in str(caught.value)


def test_processes_of_the_service_can_be_given_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("include.gateway.service.http.server.serve", given.append)
    monkeypatch.setattr("include.gateway.service.telemetry.log_to", lambda: None)
    gateway.serve(port=None)
    assert pickle.loads(pickle.dumps(given[0])).func is given[0].func


def test_a_connection_without_a_port_is_of_the_port_that_clients_reach(site: SiteSettings) -> None:
    secrets = EnvSecrets({"AIRFLOW_CONN_GATEWAY": connection("worker", "of-all", host="127.0.0.1")})
    moved = site.model_copy(update={"gateway": site.gateway.model_copy(update={"port": 5629})})
    assert [key.id for key in service_config(moved, secrets).repositories[FQRN].keys] == ["worker"]
    elsewhere = EnvSecrets({"AIRFLOW_CONN_GATEWAY": connection("worker", "of-all", host="127.0.0.1", port=4929)})
    with refused(ConfigError):
        service_config(moved, elsewhere)
