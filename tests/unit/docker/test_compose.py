"""The containers run what the lab runs, reach each other by name, and each holds only the secrets that it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from sqlalchemy.engine import make_url

from include.cli.init import init
from include.cli.settings import policies
from include.monitoring.airflow_checks import judged_timeout
from include.monitoring.findings import Severity
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.scheduling import Queue, consumer_timeout
from include.settings.secrets import EnvSecrets, ledger_address
from include.storage.buckets import PolicyServer
from lab import services
from lab.ports import Ports
from lab.servers.weed import EVERYWHERE, weed_command
from lab.services import resolved, weed_ports
from tests.fakes import compose

ROOT = compose.ROOT
COMPOSE = compose.load()
SERVICES = COMPOSE["services"]
SECRETS = {name: f"secret-of-{name}" for name in compose.required()}
FILLED = compose.load(SECRETS)
CONTAINERS = FILLED["services"]

COMPONENTS = (*services.AIRFLOW_WITH_CELERY, services.GATEWAY, services.WORKER)
WORKERS = {"worker", "collector"}
AIRFLOW = {one.name for one in services.AIRFLOW_WITH_CELERY} | WORKERS | {"migrate"}
# What reads a repository or a build, or publishes.
PUBLISHING = WORKERS | {"api-server", "triggerer"}
OURS = AIRFLOW | {"gateway", "keeper", "s3"}
MONITORING = {"prometheus", "alertmanager", "grafana"}
OTHERS = {"postgres", "rabbitmq", "ledger"} | MONITORING
# What the image itself sets; the Dockerfile's own test reads it from there.
IMAGE = {"NIGHTSHIFT_HOME": str(ROOT), "NIGHTSHIFT_VAR": "/var/lib/nightshift"}
KEYS = "/var/lib/nightshift/keys"


def site(container: str) -> SiteSettings:
    """The configuration as a program in that container reads it."""
    return load(ROOT / "config/site.yaml", environ={**IMAGE, **CONTAINERS[container]["environment"]})


# -- commands


def test_a_container_runs_the_command_that_the_lab_runs() -> None:
    for component in COMPONENTS:
        served = tuple(SERVICES[component.name]["command"])
        assert served[:-1] if component is services.WORKER else served == component.command
        program, *rest = resolved(component)
        assert (Path(program).name, *rest) == (*component.command, *component.on_one_disk)
    users = Path(SERVICES["s3"]["configs"][0]["target"])
    expected = weed_command("weed", Path("/var/lib/seaweedfs"), weed_ports(Ports()), bind=EVERYWHERE, users=users)
    assert sorted(SERVICES["s3"]["command"]) == sorted(expected)


def test_workers_serve_every_queue_and_one_alone_that_of_the_keys() -> None:
    queues = {name: set(SERVICES[name]["command"][-1].split(",")) for name in WORKERS}
    assert queues["collector"] == {Queue.GATEWAY_HOST.value}
    assert queues["worker"] == {queue.value for queue in Queue if queue is not Queue.GATEWAY_HOST}


def test_tables_come_first_then_rights_and_pools_in_one_container_that_the_others_wait_for() -> None:
    shell, flag, line = SERVICES["migrate"]["command"]
    steps = line.split(" && ")
    assert (shell, flag) == ("sh", "-c")
    assert steps[0] == " ".join(services.MIGRATE.command)
    assert steps[1] == "airflow roles add-perms Viewer User --resource Plugins --action can_read", (
        "our pages in the menu"
    )
    assert steps[2].startswith("nightshift settings pools --json > ")
    assert steps[3:] == ["airflow pools import " + steps[2].rpartition(" ")[2]]
    for name in AIRFLOW - {"migrate"}:
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}, name


def test_every_program_that_a_container_of_ours_calls_is_in_the_environment() -> None:
    programs = sysconfig.get_path("scripts")
    for name in OURS:
        called = [CONTAINERS[name]["command"]]
        check = CONTAINERS[name].get("healthcheck", {}).get("test")
        called += [check[1:] if check[0] == "CMD" else check[1].split()] if check else []
        for words in called:
            lines = words[2].split(" && ") if words[0] == "sh" else [words[0]]
            for program in (line.split()[0] for line in lines):
                assert shutil.which(program, path=programs), (name, program)


@pytest.mark.parametrize(
    ("refused", "last", "code"), [("no store", "repo", 0), ("builds", "repo", 0), ("cvmfs", "settings", 1)]
)
def test_keeper_goes_on_without_the_bucket_of_builds_and_ends_without_that_of_the_repository(
    tmp_path: Path, refused: str, last: str, code: int
) -> None:
    stub = tmp_path / "nightshift"
    stub.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in *"--store {refused} "*) exit 1;; esac\n')
    stub.chmod(0o700)
    account = {"NIGHTSHIFT_S3_KIND": "aws", "NIGHTSHIFT_S3_ACCOUNT": "123456789012"}
    command = compose.load({**SECRETS, **account})["services"]["keeper"]["command"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:{os.defpath}"}, capture_output=True, text=True)
    assert done.returncode == code
    assert ("store builds is left as it is" in done.stdout) == (refused == "builds")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-1].split()[0] == last
    own = [line for line in calls if line.startswith("settings roles")]
    assert [line.split()[3] for line in own] == ["builds", "cvmfs"]
    assert all("--server aws --account=123456789012 --owner store_cvmfs" in line for line in own)


# -- how they find each other


def test_whatever_is_waited_for_exists_and_can_be_healthy() -> None:
    assert SERVICES.keys() == OURS | OTHERS
    assert {name for name, one in SERVICES.items() if "healthcheck" not in one} == {"migrate", "keeper"}
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)
            else:
                assert SERVICES[other]["restart"] == "on-failure", (name, other)


def test_the_site_configuration_leads_to_the_other_containers() -> None:
    ledger = f"mysql+pymysql://nightshift:{SECRETS['LEDGER_PASSWORD']}@ledger/nightshift?ssl_disabled=true"
    for name in OURS - {"s3"}:
        seen = site(name)
        assert {store.endpoint for store in seen.stores.values()} == {"http://s3:8433"}
        assert {row.public_url.partition("/cvmfs/")[0] for row in seen.repositories.values()} == {"http://s3:8433"}
        if name not in {"migrate", "execution-api", "scheduler"}:
            assert ledger_address(seen, EnvSecrets({}), CONTAINERS[name]["environment"]).url == ledger
    assert CONTAINERS["ledger"]["environment"]["MARIADB_PASSWORD"] == SECRETS["LEDGER_PASSWORD"]
    assert CONTAINERS["ledger"]["environment"]["MARIADB_DATABASE"] == "nightshift"


def test_the_gateway_listens_for_all_and_is_found_by_the_publishers() -> None:
    assert site("gateway").gateway.host == "0.0.0.0"
    assert site("gateway").gateway.insecure
    for name in PUBLISHING | {"keeper"}:
        connection = EnvSecrets(CONTAINERS[name]["environment"]).get("gateway_nightlies")
        assert (connection.host, connection.port) == ("gateway", site("gateway").gateway.port)
        assert (connection.login, connection.password) == (SECRETS["GATEWAY_KEY_ID"], SECRETS["GATEWAY_KEY_SECRET"])


def test_every_connection_of_the_configuration_is_there_where_it_is_used() -> None:
    for name in PUBLISHING:
        seen = site(name)
        needed = {one.connection for one in seen.stores.values()} | {one.gateway for one in seen.repositories.values()}
        if name == "collector":
            needed |= {one.gateway_admin for one in seen.repositories.values()}
            store = seen.stores["cvmfs"]
            assert (store.gateway_connection, store.collector_connection) == (
                "store_cvmfs_gateway", "store_cvmfs_collector",
            )  # fmt: skip
            needed |= {store.gateway_connection, store.collector_connection}
        for connection in needed:
            assert EnvSecrets(CONTAINERS[name]["environment"]).get(connection or "").login
    assert EnvSecrets(CONTAINERS["gateway"]["environment"]).get("gateway_admin").login


def test_checks_ask_airflow_where_the_site_names_whom_and_nowhere_else() -> None:
    reader = {
        "NIGHTSHIFT_AIRFLOW_CONNECTION": "airflow_api",
        "AIRFLOW_CONN_AIRFLOW_API": "http://checks:pw@api-server:8080",
    }
    filled = compose.load({**SECRETS, **reader})["services"]
    assert {name for name, one in filled.items() if "checks:pw" in str(one)} == {"api-server", "collector"}
    for name in ("api-server", "collector"):
        environment = filled[name]["environment"]
        connection = load(ROOT / "config/site.yaml", environ={**IMAGE, **environment}).airflow_connection
        asked = EnvSecrets(environment).get(connection or "")
        assert (asked.host, asked.port, asked.login) == ("api-server", 8080, "checks")
        assert site(name).airflow_connection is None


def test_database_and_broker_know_the_passwords_that_airflow_uses() -> None:
    roles = CONTAINERS["postgres"]["environment"]
    database = f"postgresql+psycopg2://airflow:{roles['AIRFLOW_PASSWORD']}@postgres/airflow"
    results = f"db+postgresql+psycopg2://celery:{roles['CELERY_PASSWORD']}@postgres/celery"
    assert all(make_url(url).get_dialect().import_dbapi() for url in (database, results.removeprefix("db+")))
    broker = f"amqp://nightshift:{CONTAINERS['rabbitmq']['environment']['RABBITMQ_DEFAULT_PASS']}@rabbitmq//"
    for name in AIRFLOW:
        environment = CONTAINERS[name]["environment"]
        if name not in WORKERS:
            assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == database
        if name in WORKERS | {"scheduler"}:
            assert environment["AIRFLOW__CELERY__RESULT_BACKEND"] == results
            assert environment["AIRFLOW__CELERY__BROKER_URL"] == broker
    # RabbitMQ waits for the longest task
    milliseconds = consumer_timeout(site("worker")) // timedelta(milliseconds=1)
    arguments = SERVICES["rabbitmq"]["environment"]["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    assert arguments == f"-rabbit consumer_timeout {milliseconds}"
    assert judged_timeout(site("worker")).severity is Severity.OK


def test_tasks_have_an_api_server_of_their_own_and_logs_are_served_where_they_run() -> None:
    for name in AIRFLOW:
        url = CONTAINERS[name]["environment"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
        assert url == "http://execution-api:8081/execution/"
    assert "ports" not in SERVICES["execution-api"]
    assert "--skip-serve-logs" not in compose.text()
    assert (SERVICES["worker"]["expose"], SERVICES["triggerer"]["expose"]) == (["8793"], ["8794"])


# -- secrets


def test_every_variable_has_a_default_or_says_what_to_do_and_every_anchor_is_used() -> None:
    assert not {name for name, how, _ in compose.VARIABLE.findall(compose.text()) if name and not how}
    assert compose.required()
    anchors, aliases = (set(re.findall(rf"{sign}([a-z-]+)\b", compose.text())) for sign in (" &", r"[\s\[]\*"))
    assert anchors == aliases
    # no secret is in the file, and none has a default
    secret = re.compile(r"PASS|SECRET|KEY|CONN|BACKEND|BROKER|LEDGER_URL")
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if key == "AIRFLOW_CONN_AIRFLOW_API":  # a site makes the account, or goes without
                assert value == f"${{{key}:-}}", name
            elif secret.search(key) and not key.endswith(("MARIADB_RANDOM_ROOT_PASSWORD", "_CONNECTION")):
                assert ":?run docker/make-env}" in value, (name, key)


def test_each_container_holds_only_the_secrets_that_it_needs() -> None:
    owner, ledger, metrics = {"S3_ACCESS_KEY", "S3_SECRET_KEY"}, {"LEDGER_PASSWORD"}, {"METRICS_TOKEN"}
    publisher, gateway_store, collector, files = (
        {f"{role}_ACCESS_KEY", f"{role}_SECRET_KEY"} for role in ("PUBLISHER", "GATEWAY", "COLLECTOR", "FILES")
    )
    path, admin = {"GATEWAY_KEY_ID", "GATEWAY_KEY_SECRET"}, {"GATEWAY_ADMIN_ID", "GATEWAY_ADMIN_SECRET"}
    database, celery = {"POSTGRES_PASSWORD", "FERNET_KEY"}, {"CELERY_PASSWORD", "RABBITMQ_PASSWORD"}
    tokens, logs = {"JWT_SECRET"}, {"API_SECRET_KEY"}
    publishing = ledger | publisher | files | path
    assert {name: held(name) for name in CONTAINERS} == {
        "postgres": {"POSTGRES_OWNER_PASSWORD", "POSTGRES_PASSWORD", "CELERY_PASSWORD"},
        "rabbitmq": {"RABBITMQ_PASSWORD"},
        "ledger": ledger,
        "s3": owner | publisher | gateway_store | collector | files,
        "migrate": database,
        "api-server": database | tokens | logs | publishing | metrics,
        "execution-api": database | tokens,
        "scheduler": database | celery | tokens,
        "dag-processor": database | ledger,
        "triggerer": database | logs | publishing,
        "worker": celery | logs | publishing,
        "collector": celery | logs | publishing | gateway_store | collector | admin,
        "gateway": ledger | gateway_store | admin,
        "keeper": ledger | owner | path,
        "prometheus": metrics,
        "alertmanager": set(),
        "grafana": {"GRAFANA_PASSWORD"},
    }


def held(name: str) -> set[str]:
    """The secrets that a container has, in its environment or in a file that is written into it."""
    files = [FILLED[group][one["source"]] for group in ("configs", "secrets") for one in granted(name, group)]
    texts = [str(CONTAINERS[name].get("environment")), *(str(one.get("content")) for one in files)]
    texts += [SECRETS[one["environment"]] for one in files if "environment" in one]
    return {secret for secret, value in SECRETS.items() if any(value in text for text in texts)}


def granted(name: str, group: str) -> list[dict[str, str]]:
    return CONTAINERS[name].get(group, [])


def test_workers_hold_no_key_that_switches_deletes_or_signs_and_no_database() -> None:
    assert not held("worker") & {"GATEWAY_SECRET_KEY", "COLLECTOR_SECRET_KEY", "S3_SECRET_KEY", "GATEWAY_ADMIN_SECRET"}
    for name in WORKERS:
        assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in CONTAINERS[name]["environment"]
    # it hands out each connection of its environment to any task that asks for it
    assert not [key for key in CONTAINERS["execution-api"]["environment"] if key.startswith("AIRFLOW_CONN_")]


def test_the_users_of_the_store_are_those_of_the_policy_and_have_the_keys_of_the_containers() -> None:
    users = {one["name"]: one for one in json.loads(FILLED["configs"]["s3-users"]["content"])["identities"]}
    document = policies(site("keeper"), "cvmfs", PolicyServer.SEAWEEDFS, user_prefix="nightshift-")
    assert {*document["users"].values()} == {name for name, one in users.items() if not one["actions"]}
    keys = {name: tuple(users[name]["credentials"][0].values()) for name in users}
    for container, connection, user in (
        ("worker", "store_cvmfs", "nightshift-publisher"),
        ("worker", "store_builds", "nightshift-files"),
        ("gateway", "store_cvmfs", "nightshift-gateway"),
        ("collector", "store_cvmfs_gateway", "nightshift-gateway"),
        ("collector", "store_cvmfs_collector", "nightshift-collector"),
        ("keeper", "store_cvmfs", "owner"),
    ):
        secret = EnvSecrets(CONTAINERS[container]["environment"]).get(connection)
        assert (secret.login, secret.password) == keys[user], (container, connection)
    assert all(":" in action for action in users["nightshift-files"]["actions"]), "each names its bucket"


def test_private_keys_are_in_gateway_and_collector_and_public_ones_where_something_is_read() -> None:
    fqrn = next(iter(site("gateway").repositories))
    files = {
        name: Path(one["file"]).name
        for group in ("configs", "secrets")
        for name, one in FILLED[group].items()
        if "keys/" in one.get("file", "")
    }
    seen = {}
    for name, service in CONTAINERS.items():
        for group in ("configs", "secrets"):
            for one in [each for each in service.get(group, ()) if each["source"] in files]:
                assert one["target"] == f"{KEYS}/{files[one['source']]}"
                seen.setdefault(name, set()).add(files[one["source"]])
    private = {f"{fqrn}.key", f"{fqrn}.crt", f"{fqrn}.gw"}
    assert seen.pop("gateway") == private | {f"{fqrn}.pub"}
    assert seen.pop("collector") == private - {f"{fqrn}.gw"} | {f"{fqrn}.pub"}
    assert seen == {name: {f"{fqrn}.pub"} for name in AIRFLOW - {"migrate", "collector"}}
    assert str(site("worker").repository(fqrn).public_key) == f"{KEYS}/{fqrn}.pub"
    assert str(site("gateway").gateway.keys) == KEYS
    # The folder itself, with the master key, is for who makes the keys.
    mounted = {name: str(service.get("volumes", "")) for name, service in SERVICES.items()}
    assert {name for name, volumes in mounted.items() if "keys" in volumes} == {"keeper"}
    assert SERVICES["keeper"]["profiles"] == ["keeper"], "it starts only when called by name"


def test_a_configuration_of_init_takes_the_place_of_ours_with_its_repository_and_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fqrn = "software.example.org"
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    for name in ("BUILDS", "CVMFS"):
        monkeypatch.setenv(f"AIRFLOW_CONN_STORE_{name}", "object-store://key:secret@")
    monkeypatch.setattr("include.cli.init._try", lambda *_, **__: ())
    init(repository=fqrn, store="s3://software", index="s3://builds", endpoint="http://s3:8433", slot="main")
    own = {**SECRETS, "NIGHTSHIFT_CONFIG": f"config/{fqrn}.yaml", "NIGHTSHIFT_REPOSITORY": fqrn}
    filled = compose.load(own)
    for name in PUBLISHING | {"gateway", "keeper"}:
        environment = {**IMAGE, **filled["services"][name]["environment"], "NIGHTSHIFT_HOME": str(tmp_path)}
        seen = load(environ=environment)
        assert list(seen.repositories) == [fqrn], name
        needed = {store.connection for store in seen.stores.values()} if name in PUBLISHING else {"store_cvmfs"}
        needed |= {"gateway"} if name != "gateway" else {"gateway_admin"}
        needed |= {seen.stores["cvmfs"].collector_connection} if name == "collector" else set()
        assert all(EnvSecrets(environment).get(connection).login for connection in needed), name
    assert filled["services"]["keeper"]["command"][-1].endswith(f"repo create {fqrn}")
    files = [each.get("file", "") for group in ("configs", "secrets") for each in filled[group].values()]
    assert sorted(Path(each).name for each in files if "keys/" in each) == [
        f"{fqrn}.{suffix}" for suffix in ("crt", "gw", "key", "pub")
    ]
    targets = [each["target"] for each in filled["services"]["gateway"]["secrets"]]
    assert targets == [f"{KEYS}/{fqrn}.{suffix}" for suffix in ("key", "crt", "gw")]


# -- images, volumes, ports


def test_images_are_pinned_and_a_site_may_name_its_own_digests() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, service in SERVICES.items():
        if name in OURS:
            image = "nightshift-store" if name == "s3" else "nightshift"
            assert service["image"] == f"{image}:{version}"
            assert service["build"].get("target") == ("store" if name == "s3" else None)
            base = service["build"]["args"]["PYTHON_IMAGE"]
        else:
            base = service["image"]
        variable, image, tag = re.fullmatch(r"\$\{(NIGHTSHIFT_\w+_IMAGE):-([a-z/-]+):(.*)\}", base).groups()
        assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-[\w-]+)?", tag), (name, tag)
        digest = f"{image}@sha256:{'0' * 64}"
        filled = compose.load({**SECRETS, variable: digest})["services"][name]
        assert digest in (filled["image"], filled.get("build", {}).get("args", {}).get("PYTHON_IMAGE"))


def test_no_container_is_privileged_and_ours_cannot_change_their_own_programs() -> None:
    for name, service in CONTAINERS.items():
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices", "userns_mode"}
        assert "docker.sock" not in str(service)
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if name in OURS | MONITORING:
            assert service["cap_drop"] == ["ALL"], name
    # a file that is no file of the host, as that of the store's users, is written into a container when it starts
    assert {name for name in CONTAINERS if CONTAINERS[name].get("read_only")} == (OURS | MONITORING) - {
        "s3",
        "prometheus",
    }


def test_named_volumes_are_declared_and_used_and_lie_on_folders_of_the_image() -> None:
    named = {
        volume.partition(":")[0]: (name, volume.split(":")[1])
        for name, service in SERVICES.items()
        for volume in service.get("volumes", ())
        if not volume.startswith(".")
    }
    assert named.keys() == COMPOSE["volumes"].keys()
    stages = (ROOT / "docker/Dockerfile").read_text().split("\nFROM ")
    for name, place in named.values():
        if name in OURS:
            stage = stages[1] if name == "s3" else stages[-1]
            assert place in stage.partition("install --directory")[2].partition("WORKDIR")[0].split(), name


def test_nothing_is_published_beyond_this_machine_unless_asked_for() -> None:
    published = {name: one["ports"] for name, one in CONTAINERS.items() if "ports" in one}
    ports = {"s3": 8433, "api-server": 8080, "gateway": 4929, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}
    assert published == {name: [f"127.0.0.1:{port}:{port}"] for name, port in ports.items()}
    asked = compose.load({**SECRETS, "NIGHTSHIFT_LISTEN": "192.0.2.1"})["services"]
    assert {name for name, one in asked.items() if "192.0.2.1" in str(one.get("ports"))} == ports.keys() - MONITORING


# -- monitoring


def test_monitoring_starts_only_by_its_profile_and_finds_what_it_watches() -> None:
    assert {name for name, one in SERVICES.items() if one.get("profiles") == ["monitoring"]} == MONITORING
    assert SERVICES["api-server"]["environment"]["NIGHTSHIFT_METRICS_CONNECTION"] == "metrics"
    token = EnvSecrets(CONTAINERS["api-server"]["environment"]).get("metrics").password
    assert token == SECRETS[FILLED["secrets"]["metrics-token"]["environment"]]
    config = yaml.safe_load((ROOT / "config/prometheus/prometheus.yaml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["nightshift"]["authorization"] == {"credentials_file": "/run/secrets/metrics-token"}
    listed = [one for job in config["scrape_configs"] for one in job["static_configs"]]
    listed += [one for each in config["alerting"]["alertmanagers"] for one in each["static_configs"]]
    for name, port in (target.split(":") for one in listed for target in one["targets"]):
        assert SERVICES[name]["ports"][0].endswith(f":{port}"), name


def test_grafana_has_our_dashboards_and_the_prometheus_beside_it() -> None:
    mounted = dict(volume.split(":")[1::-1] for volume in SERVICES["grafana"]["volumes"])
    provisioning = ROOT / "config/grafana/provisioning"
    assert (ROOT / "docker" / mounted["/etc/grafana/provisioning"]).resolve() == provisioning
    (provider,) = yaml.safe_load((provisioning / "dashboards/nightshift.yaml").read_text())["providers"]
    dashboards = (ROOT / "docker" / mounted[provider["options"]["path"]]).resolve()
    assert {path.stem for path in dashboards.glob("*.json")} >= {"night", "transfers", "repositories", "storage"}
    (source,) = yaml.safe_load((provisioning / "datasources/nightshift.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
