"""Table of the services of a lab and their credentials, as docs/security.md has it beside those of the containers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from include.settings.load import load
from include.settings.secrets import EnvSecrets
from lab import lifecycle
from lab.cluster import Cluster
from lab.environment import Lab, LabFolders, adopt
from lab.ports import Ports
from lab.secrets import LabSecrets
from tests.fakes import labsecrets

LEDGER, PATH, ADMIN = {"ledger_password"}, {"gateway_key_secret"}, {"gateway_admin_secret"}
DATABASE, TOKENS, LOGS = {"airflow_database_password", "fernet_key"}, {"jwt_secret"}, {"api_secret_key"}
CELERY, READER, RUNS = {"celery_password", "broker_password"}, {"viewer_password"}, {"keeper_password"}
METRICS, FTS = {"metrics_token"}, {"fts_token"}
STORES = {"publisher_secret_key", "files_secret_key"}
PUBLISHING = STORES | PATH
COLLECTING = {"gateway_secret_key", "collector_secret_key"} | ADMIN | READER

ALONE = {
    "gateway": {"gateway_secret_key"} | PATH | ADMIN,
    "fts": {"files_secret_key"},
    "api-server": DATABASE | TOKENS | LOGS | PUBLISHING | METRICS | READER | FTS,
    # the tasks are in its process group
    "scheduler": DATABASE | TOKENS | PUBLISHING | COLLECTING | FTS | RUNS,
    "dag-processor": DATABASE,
    "triggerer": DATABASE | PUBLISHING | FTS,
}
WORKER = CELERY | LOGS | PUBLISHING | LEDGER
WITH_CELERY = {
    **{name: ALONE[name] | LEDGER for name in ("gateway", "api-server", "dag-processor", "triggerer")},
    "fts": {"files_secret_key"},
    "execution-api": DATABASE | TOKENS,
    "scheduler": DATABASE | TOKENS | CELERY,
    "worker-1": WORKER | FTS | RUNS,
    "worker-2": WORKER | FTS | RUNS,
    "collector": WORKER | COLLECTING,
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(LabFolders(tmp_path / "var"), Ports(), LabSecrets.generate())


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of Debian that need not be here, and connections that this environment may have."""
    monkeypatch.setattr("lab.servers.mariadb.find_program", lambda name: f"/usr/sbin/{name}")


@pytest.mark.parametrize(("cluster", "table"), [(None, ALONE), (Cluster(7, 2), WITH_CELERY)])
def test_each_service_holds_only_the_credentials_that_it_needs(
    lab: Lab, cluster: Cluster | None, table: dict[str, set[str]]
) -> None:
    lab = replace(lab, cluster=cluster)
    common, credentials, users = lifecycle.split_environment(lab)
    secrets = labsecrets.by_name(lab.secrets)

    def inside(held: object) -> set[str]:
        return {name for name, secret in secrets.items() if secret in str(held)} - {"gateway_key_id"}

    assert {name: inside(held) for name, held in credentials.items()} == table
    assert inside(common) == set(), "supervisord hands it to all"
    assert inside(users) == {"s3_access_key", "s3_secret_key"} | STORES | {"gateway_secret_key", "collector_secret_key"}


def test_commands_of_the_checkout_have_the_key_of_the_owner_and_users_of_roles_no_action_of_their_own(lab: Lab) -> None:
    owner = (lab.secrets.s3_access_key, lab.secrets.s3_secret_key)
    environment, by_role = lab.environment({}), replace(lab, by_role=True).environment({})
    stores = ("store_cvmfs", "store_cvmfs_gateway", "store_cvmfs_collector", "store_builds", "store_stageout")

    def keys(given: dict[str, str]) -> list[tuple[str | None, str | None]]:
        return [(one.login, one.password) for one in map(EnvSecrets(given).get, stores)]

    assert keys(environment) == [owner] * len(stores)
    roles = ("publisher", "gateway", "collector", "files", "files")
    assert keys(by_role) == [lab.s3_keys(role) for role in roles]
    _, _, text = lifecycle.split_environment(lab)
    users = {one["name"]: one for one in json.loads(text)["identities"]}
    assert {name for name, one in users.items() if not one["actions"]} == {f"nightshift-{role}" for role in roles[:3]}
    assert set(users["nightshift-files"]["actions"]) == {
        f"{action}:{bucket}" for action in ("Read", "List", "Write") for bucket in ("builds", "stageout")
    }


def test_a_connection_of_the_caller_goes_where_it_is_used(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path("config/site.yaml").read_text() + "backup: {store: builds, connection: passphrase}\n"
    (tmp_path / "site.yaml").write_text(text)
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", "generic://:of-the-chat@")
    monkeypatch.setenv("AIRFLOW_CONN_PASSPHRASE", "generic://:of-backups@")
    monkeypatch.setenv("AIRFLOW_CONN_STORE_CVMFS", "object-store://real:key@")
    _, credentials, _ = lifecycle.split_environment(lab)

    def holders(variable: str) -> set[str]:
        return {name for name, held in credentials.items() if variable in held}

    assert holders("AIRFLOW_CONN_CHAT") == {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert holders("AIRFLOW_CONN_PASSPHRASE") == {"scheduler"}
    # a store with one key for all has it where the gateway is, too
    assert holders("AIRFLOW_CONN_STORE_CVMFS") == {"gateway", "api-server", "scheduler", "triggerer"}
    assert "NIGHTSHIFT_GATEWAY_STORE" not in lab.environment()


def test_a_service_without_a_connection_is_not_told_its_name(lab: Lab) -> None:
    common, credentials, _ = lifecycle.split_environment(replace(lab, cluster=Cluster(7, 1)))
    worker = load(environ={**common, **credentials["worker-1"]})
    assert (worker.airflow_connection, worker.metrics_connection) == (None, None)
    assert worker.stores["cvmfs"].gateway_connection is None
    collector = load(environ={**common, **credentials["collector"]})
    assert collector.airflow_connection == "airflow_api"
    assert collector.stores["cvmfs"].collector_connection == "store_cvmfs_collector"


def test_what_a_command_adopted_of_a_lab_is_not_taken_for_its_caller_s_own(tmp_path: Path) -> None:
    environment = {"NIGHTSHIFT_VAR": str(tmp_path)}
    lab = Lab.from_environment(environment)
    adopt(environment)
    adopt(environment)
    assert EnvSecrets(environment).get("store_cvmfs").login == lab.secrets.s3_access_key
    services = replace(lab, by_role=True, cluster=Cluster(7, 1)).environment(environment)
    store = EnvSecrets(services).get("store_cvmfs")
    assert (store.login, store.host) == ("nightshift-publisher", "10.213.7.1")
    assert not [name for name in services if "ADOPTED" in name]
