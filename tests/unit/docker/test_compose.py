"""The containers run what the lab runs, reach each other by name, and each holds only the secrets that it needs."""

from __future__ import annotations

import re
import shutil
import sysconfig
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from include.cli.init import init
from include.monitoring.airflow_checks import judged_timeout
from include.monitoring.findings import Severity
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.pools import consumer_timeout
from include.settings.secrets import EnvSecrets, ledger_address
from lab import services
from lab.ports import Ports
from lab.servers.weed_command import EVERYWHERE, weed_command
from lab.services import resolved, weed_ports
from tests.fakes import compose

ROOT = compose.ROOT
COMPOSE = compose.load()
SERVICES = COMPOSE["services"]
SECRETS = {name: f"secret-of-{name}" for name in compose.required()}
FILLED = compose.load(SECRETS)
CONTAINERS = FILLED["services"]

COMPONENTS = (*services.AIRFLOW_WITH_CELERY, services.GATEWAY, services.WORKER)
AIRFLOW = {one.name for one in (*services.AIRFLOW_WITH_CELERY, services.WORKER)} | {"migrate"}
OURS = AIRFLOW | {"gateway", "keeper", "s3"}
OTHERS = {"postgres", "rabbitmq", "ledger"}
# What the image itself sets; the Dockerfile's own test reads it from there.
IMAGE = {"NIGHTSHIFT_HOME": str(ROOT), "NIGHTSHIFT_VAR": "/var/lib/nightshift"}
KEYS = "/var/lib/nightshift/keys"


def site(container: str) -> SiteSettings:
    """The configuration as a program in that container reads it."""
    return load(ROOT / "config/site.yaml", environ={**IMAGE, **CONTAINERS[container]["environment"]})


# -- commands


def test_a_container_runs_the_command_that_the_lab_runs() -> None:
    for component in COMPONENTS:
        assert tuple(SERVICES[component.name]["command"]) == component.command
        program, *rest = resolved(component)
        assert (Path(program).name, *rest) == (*component.command, *component.on_one_disk)
    expected = weed_command("weed", Path("/var/lib/seaweedfs"), weed_ports(Ports()), bind=EVERYWHERE)
    assert sorted(SERVICES["s3"]["command"]) == sorted(expected)


def test_tables_come_first_then_pools_in_one_container_that_the_others_wait_for() -> None:
    shell, flag, line = SERVICES["migrate"]["command"]
    steps = line.split(" && ")
    assert (shell, flag) == ("sh", "-c")
    assert steps[0] == " ".join(services.MIGRATE.command)
    assert steps[1].startswith("nightshift settings pools --json > ")
    assert steps[2] == "airflow pools import " + steps[1].rpartition(" ")[2]
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
        assert ledger_address(seen, EnvSecrets({}), CONTAINERS[name]["environment"]).url == ledger
    assert CONTAINERS["ledger"]["environment"]["MARIADB_PASSWORD"] == SECRETS["LEDGER_PASSWORD"]
    assert CONTAINERS["ledger"]["environment"]["MARIADB_DATABASE"] == "nightshift"


def test_the_gateway_listens_for_all_and_is_found_by_the_publishers() -> None:
    assert site("gateway").gateway.host == "0.0.0.0"
    assert site("gateway").gateway.insecure
    for name in AIRFLOW | {"keeper"}:
        connection = EnvSecrets(CONTAINERS[name]["environment"]).get("gateway_nightlies")
        assert (connection.host, connection.port) == ("gateway", site("gateway").gateway.port)
        assert (connection.login, connection.password) == (SECRETS["GATEWAY_KEY_ID"], SECRETS["GATEWAY_KEY_SECRET"])


def test_every_connection_of_the_configuration_is_there_where_it_is_used() -> None:
    found = site("worker")
    stores = {one.connection for one in found.stores.values()}
    for name in AIRFLOW:
        gateways = {one.gateway for one in found.repositories.values()}
        gateways |= {one.gateway_admin for one in found.repositories.values()}
        for connection in stores | gateways:
            assert EnvSecrets(CONTAINERS[name]["environment"]).get(connection or "").login
    store = EnvSecrets(CONTAINERS["gateway"]["environment"]).get("store_cvmfs")
    owner = CONTAINERS["s3"]["environment"]
    assert (store.login, store.password) == (owner["AWS_ACCESS_KEY_ID"], owner["AWS_SECRET_ACCESS_KEY"])


def test_database_and_broker_know_the_passwords_that_airflow_uses() -> None:
    for name in AIRFLOW:
        environment = CONTAINERS[name]["environment"]
        database = f"://airflow:{CONTAINERS['postgres']['environment']['POSTGRES_PASSWORD']}@postgres/airflow"
        assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "postgresql+psycopg2" + database
        assert environment["AIRFLOW__CELERY__RESULT_BACKEND"] == "db+postgresql" + database
        broker = CONTAINERS["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_PASS"]
        assert environment["AIRFLOW__CELERY__BROKER_URL"] == f"amqp://nightshift:{broker}@rabbitmq//"
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
        for key, value in service["environment"].items():
            if secret.search(key) and key != "MARIADB_RANDOM_ROOT_PASSWORD":
                assert ":?run docker/make-env}" in value, (name, key)


def test_each_container_holds_only_the_secrets_that_it_needs() -> None:
    held = {
        name: {one for one, value in SECRETS.items() if value in str(service["environment"])}
        for name, service in CONTAINERS.items()
    }
    store, ledger, gateway, admin = (
        {"S3_ACCESS_KEY", "S3_SECRET_KEY"},
        {"LEDGER_PASSWORD"},
        {"GATEWAY_KEY_ID", "GATEWAY_KEY_SECRET"},
        {"GATEWAY_ADMIN_ID", "GATEWAY_ADMIN_SECRET"},
    )
    assert held["postgres"] == {"POSTGRES_PASSWORD"}
    assert held["rabbitmq"] == {"RABBITMQ_PASSWORD"}
    assert held["ledger"] == ledger
    assert held["s3"] == store
    assert held["gateway"] == store | ledger | admin
    assert held["keeper"] == store | ledger | gateway
    for name in AIRFLOW:
        assert held[name] == SECRETS.keys()


def test_private_keys_are_in_the_gateway_alone_and_public_ones_where_something_is_read() -> None:
    fqrn = next(iter(site("gateway").repositories))
    files = {name: Path(one["file"]).name for group in ("configs", "secrets") for name, one in FILLED[group].items()}
    seen = {}
    for name, service in CONTAINERS.items():
        for group in ("configs", "secrets"):
            for one in service.get(group, ()):
                assert one["target"] == f"{KEYS}/{files[one['source']]}"
                seen.setdefault(name, set()).add(files[one["source"]])
    private = {f"{fqrn}.key", f"{fqrn}.crt", f"{fqrn}.gw"}
    assert seen.pop("gateway") == private | {f"{fqrn}.pub"}
    assert seen == {name: {f"{fqrn}.pub"} for name in AIRFLOW - {"migrate"}}
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
    for name in AIRFLOW | {"gateway", "keeper"}:
        environment = {**IMAGE, **filled["services"][name]["environment"], "NIGHTSHIFT_HOME": str(tmp_path)}
        seen = load(environ=environment)
        assert list(seen.repositories) == [fqrn], name
        needed = {store.connection for store in seen.stores.values()} if name != "gateway" else {"store_cvmfs"}
        needed |= {"gateway"} if name != "gateway" else {"gateway_admin"}
        assert all(EnvSecrets(environment).get(connection).login for connection in needed), name
    assert filled["services"]["keeper"]["command"][-1] == fqrn
    files = [Path(each["file"]).name for group in ("configs", "secrets") for each in filled[group].values()]
    assert sorted(files) == [f"{fqrn}.{suffix}" for suffix in ("crt", "gw", "key", "pub")]
    targets = [each["target"] for each in filled["services"]["gateway"]["secrets"]]
    assert targets == [f"{KEYS}/{fqrn}.{suffix}" for suffix in ("key", "crt", "gw")]


# -- images, volumes, ports


def test_images_are_pinned() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, service in SERVICES.items():
        image, _, tag = service["image"].partition(":")
        if name in OURS:
            assert (image, tag) == ("nightshift-store" if name == "s3" else "nightshift", version)
            assert service["build"].get("target") == ("store" if name == "s3" else None)
        else:
            assert re.fullmatch(r"\d+\.\d+(\.\d+)?(-\w+)?", tag), (name, tag)


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
    assert published == {
        name: [f"127.0.0.1:{port}:{port}"] for name, port in (("s3", 8433), ("api-server", 8080), ("gateway", 4929))
    }
