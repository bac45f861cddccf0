"""Workers differ by their environment and their machine alone, and each queue has one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from include.settings.scheduling import BROKER_URL, Queue
from lab import cluster as clusters
from lab.cluster import Cluster
from lab.environment import Lab, LabFolders
from lab.errors import LabError
from lab.ports import LOOPBACK, Ports
from lab.secrets import LabSecrets
from lab.services import services
from lab.supervise import Supervisor, configuration
from tests.fakes import labsecrets
from tests.fakes.refused import refused


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(LabFolders(tmp_path / "var"), Ports(), LabSecrets.generate(), cluster=Cluster(7, 3))


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of Debian that need not be here."""
    monkeypatch.setattr("lab.servers.mariadb.find_program", lambda name: f"/usr/sbin/{name}")


def test_only_its_environment_and_its_machine_s_names_tell_a_worker_from_another(lab: Lab) -> None:
    assert lab.cluster
    found = {one.name: one.program for one in services(lab, airflow=True)}
    alike = set()
    for machine in lab.cluster.machines:
        program = found[machine.name]
        assert program.environment.keys() == {"NIGHTSHIFT_VAR", "AIRFLOW_HOME", "NIGHTSHIFT_QUEUES"}
        assert program.environment["NIGHTSHIFT_VAR"] == str(lab.place.var / "workers" / machine.name)
        own = {machine.namespace: "<namespace>", machine.address: "<address>"}
        alike.add(tuple(own.get(word, word) for word in program.command))
    assert len(alike) == 1


def test_each_queue_has_a_worker_and_those_of_one_host_have_one_only(lab: Lab) -> None:
    assert lab.cluster
    served = [queue for machine in lab.cluster.machines for queue in machine.queues]
    assert {queue.value: served.count(queue.value) for queue in Queue} == {
        "default": 3, "publish": 3, "transfer": 3, "benchmark": 1, "gateway-host": 1,
    }  # fmt: skip


def test_services_are_reached_at_the_bridge_by_everybody(lab: Lab) -> None:
    environment = lab.environment({})
    assert {lab.airflow_url, lab.s3_url, lab.gateway_url} == {
        f"http://10.213.7.1:{port}" for port in (8080, 8433, 4929)
    }
    for name, value in environment.items():
        if name.startswith("AIRFLOW_CONN_") and "host" in value and "FTS" not in name:
            assert json.loads(value)["host"] == "10.213.7.1", name
    assert environment["NIGHTSHIFT_LEDGER_URL"].endswith("@10.213.7.1:13306/nightshift?ssl_disabled=true")
    assert environment["NIGHTSHIFT_GATEWAY_INSECURE"] == "true"
    assert {"10.213.7.1", *(one.address for one in Cluster(7, 3).machines)} <= {*environment["NO_PROXY"].split(",")}
    assert environment["NIGHTSHIFT_CONSUMER_TIMEOUT_HOURS"] == "26"


def test_without_celery_nothing_of_it_is_there(lab: Lab) -> None:
    alone = replace(lab, cluster=None)
    assert alone.address == LOOPBACK
    names = [one.name for one in services(alone, airflow=True)]
    assert names == [
        "weed", "gateway", "fts", "postgres", "api-server", "scheduler", "dag-processor", "triggerer",
    ]  # fmt: skip
    added = lab.environment({}).keys() - alone.environment({}).keys()
    assert BROKER_URL in added
    assert not {
        name for name in alone.environment({}) if "CELERY" in name or "INSECURE" in name or "LEDGER_URL" in name
    }


def test_no_secret_is_on_a_command_line_or_for_a_shell_that_needs_none(lab: Lab) -> None:
    programs = [one.program for one in services(lab, airflow=True)]
    text = configuration(Supervisor(lab.place), programs)
    secrets = labsecrets.by_name(lab.secrets)
    assert not {name for name, secret in secrets.items() if secret in text}
    assert {name for name, secret in secrets.items() if secret in json.dumps(lab.shell())} == {
        "airflow_database_password", "fernet_key",
    }  # fmt: skip


def test_which_workers_there_are_is_written_down(lab: Lab) -> None:
    lab.place.make()
    assert Cluster.load(lab.place.cluster) is None
    assert lab.cluster
    lab.cluster.save(lab.place.cluster)
    assert Lab.from_environment({"NIGHTSHIFT_VAR": str(lab.place.var)}).cluster == lab.cluster
    largest = Cluster(255, clusters.MOST_WORKERS)
    assert max(len(name) for name in (largest.bridge, *map(largest.link, largest.machines))) <= 15, (
        "as the kernel wants"
    )


def test_without_root_or_programs_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with refused(LabError) as caught:
        Cluster.choose(3)
    assert "root" in str(caught.value)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(clusters, "find_program", lambda program: None if program == "socat" else program)
    with refused(LabError) as caught:
        Cluster.choose(3)
    assert str(caught.value).endswith("apt-get install socat")


@pytest.mark.parametrize("answer", ['Cannot find device "ns7-worker-1"', "RTNETLINK answers: No such device"])
def test_a_cable_that_goes_with_its_namespace_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    program = tmp_path / "ip"
    links = '[{"ifname": "ns7-worker-1"}]'
    program.write_text(
        f"#!/bin/sh\ncase $* in\n'-json link') echo '{links}';;\n'-json netns list') ;;\n"
        f"*) echo '{answer}' >&2; exit 1;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(clusters, "find_program", lambda _: str(program))
    Cluster(7, 1).remove()
    with refused(LabError):
        Cluster(7, 1).make()
