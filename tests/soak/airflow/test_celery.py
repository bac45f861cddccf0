"""A night on three Celery workers, in which one dies, one loses its network, and RabbitMQ restarts; and a long task."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from include.lab.cluster import Cluster, Machine, find
from include.lab.environment import WORKER_LOGS
from include.lab.services import rabbitmq, worker
from include.lab.supervise import Supervisor
from include.settings.secrets import LEDGER_URL_VARIABLE
from tests.e2e.deployment import FQRN, Deployment, TestLab
from tests.e2e.kills import COMMIT, DAG
from tests.fakes.builds import Build, tree

pytestmark = [
    pytest.mark.server("weed"),
    pytest.mark.server("rabbitmq-server"),
    pytest.mark.server("mariadbd"),
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

RUN, DATE = "workers", "2026-11-14"
ARTIFACTS = 12
HELD = 4  # slots of the pool `publish`
NIGHT_S = 480.0
BACK_S = 240.0  # a broken connection is noticed by its heartbeats
SOON_S = 180.0
CONSUMER_TIMEOUT = timedelta(seconds=60)
LONG_TASK_S = 200  # RabbitMQ looks once a minute
LONG_DAG = f"""
import time
from airflow.sdk import dag, task

@dag(schedule=None, catchup=False, params={{"place": ""}})
def long_task():
    @task(retries=0)
    def waits(place):
        with open(place, "a") as file:
            file.write("began\\n")
        time.sleep({LONG_TASK_S})
    waits("{{{{ params.place }}}}")

long_task()
"""


@pytest.fixture(scope="module")
def workers(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The lab with three workers."""
    patch = pytest.MonkeyPatch()
    patch.setattr(TestLab, "consumer_timeout", lambda *_: CONSUMER_TIMEOUT)
    made = Deployment(tmp_path_factory.mktemp("workers"), Cluster.choose(3))
    patch.setenv(LEDGER_URL_VARIABLE, made.environment[LEDGER_URL_VARIABLE])
    try:
        made.start()
        yield made
    finally:
        made.stop()
        patch.undo()


def cluster(deployment: Deployment) -> Cluster:
    assert deployment.cluster
    return deployment.cluster


def publishing(deployment: Deployment) -> dict[str, list[str]]:
    """Address of a worker -> the artifacts that it is publishing."""
    found: dict[str, list[str]] = {}
    for one in deployment.tasks(DAG, RUN):
        if one["task_id"] == "artifact.publish" and one["state"] == "running":
            found.setdefault(one["hostname"], []).append(one["rendered_map_index"])
    return found


def kill_all(machine: Machine) -> None:
    """Every process of a machine, as a loss of power would."""
    pids = subprocess.run(
        [str(find("ip")), "netns", "pids", machine.namespace], capture_output=True, text=True, check=True
    )
    for pid in pids.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


def cable(deployment: Deployment, machine: Machine, state: str) -> None:
    subprocess.run(
        [str(find("ip")), "link", "set", cluster(deployment).link(machine), state], check=True, capture_output=True
    )


@pytest.mark.timeout(1500)
def test_a_night_survives_a_dead_worker_a_cut_off_one_and_a_restart_of_the_broker(workers: Deployment) -> None:
    build = Build(DATE, slot="faults")
    for number in range(ARTIFACTS):
        build.add(f"P{number:02}", "x86_64", tree({"lib/own.so": f"of {number} ".encode() * 100}))
    workers.drop(build)
    before, gateway = workers.revision(), workers.gateway_proxy
    machines = {one.address: one for one in cluster(workers).machines}
    try:
        reserving = gateway.hold(method="POST", path=COMMIT)
        workers.trigger(DAG, RUN, slot="faults", build_date=DATE)
        reserving.wait(SOON_S)
        commits = [gateway.hold(method="POST", path=COMMIT) for _ in range(HELD)]
        reserving.release()
        for commit in commits:
            commit.wait(SOON_S)
        busy = publishing(workers)
        assert sum(map(len, busy.values())) == HELD
        assert busy.keys() <= machines.keys()
        assert len(busy) > 1, "one worker had all"
        dead, cut, *_ = (machines[address] for address in sorted(busy))
        supervisor = Supervisor(workers.place)
        kill_all(dead)
        supervisor.stop_programs([dead.name], timeout_s=60)  # or it would come back
        cable(workers, cut, "down")
        supervisor.stop_programs(["rabbitmq"], timeout_s=60)
        supervisor.start_program("rabbitmq")
        workers.wait_until(lambda: rabbitmq(workers.lab).answers() is None, "RabbitMQ answers", 60)
    finally:
        gateway.clear()
    seen = workers.follow(DAG, RUN, NIGHT_S)
    after = workers.revision()
    cable(workers, cut, "up")
    supervisor.start_program(dead.name)

    assert seen.state == "success"
    publications = workers.publications(DAG, RUN)
    assert {name: one.state.value for name, one in publications.items()} == dict.fromkeys(
        [f"P{number:02}/x86_64" for number in range(ARTIFACTS)], "published"
    )
    victims = {*busy[dead.address], *busy[cut.address]}
    tries = {
        one["rendered_map_index"]: one["try_number"]
        for one in workers.tasks(DAG, RUN)
        if one["task_id"] == "artifact.publish"
    }
    assert {name for name in tries if tries[name] > 1} >= victims
    repository = workers.site.repository(FQRN)
    assert before < after <= before + 1 + ARTIFACTS
    for number in range(ARTIFACTS):
        path = build.destination(f"P{number:02}", "x86_64")
        assert repository.revision.read(f"{path}/lib/own.so") == f"of {number} ".encode() * 100
    assert workers.problems() == ()
    assert workers.leases() == []

    # both are workers again, and what they had begun changes nothing
    back = [worker(workers.lab, machine) for machine in (dead, cut)]
    workers.wait_until(lambda: not any(one.answers() for one in back), "both answer", BACK_S)
    assert workers.revision() == after


def test_the_log_of_a_task_on_another_machine_is_shown(workers: Deployment) -> None:
    for one in workers.tasks(DAG, RUN):
        if one["task_id"] == "artifact.publish" and one["state"] == "success":
            log = workers.rest(
                "GET",
                f"/dags/{DAG}/dagRuns/{RUN}/taskInstances/{one['task_id']}/logs/{one['try_number']}"
                f"?map_index={one['map_index']}",
                headers={"Accept": "application/json"},
            )
            text = str(log["content"])
            assert "published" in text, text[:500]
            assert f"http://{one['hostname']}:{WORKER_LOGS}/" in text, "it was asked of its worker"
            return
    raise AssertionError("no artifact was published")


def test_a_task_that_takes_longer_than_rabbitmq_waits_runs_once(workers: Deployment, tmp_path: Path) -> None:
    (workers.own_dags / "long_task.py").write_text(LONG_DAG)
    workers.api.wait_for_dag("long_task", timeout_s=90)
    began = tmp_path / "began"
    workers.trigger("long_task", "once", place=str(began))
    assert workers.follow("long_task", "once", LONG_TASK_S + 120).state == "success"
    assert began.read_text() == "began\n"
    log = "".join(file.read_text(errors="replace") for file in workers.place.log.glob("rabbitmq.log*"))
    assert "waiting for delivery acknowledgement" in log, "RabbitMQ waited long enough"
