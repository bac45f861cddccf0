"""Nights on three Celery workers: one dies, one is cut off, one freezes, servers restart; and a long task."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.settings.secrets import LEDGER_URL_VARIABLE
from lab.cluster import Cluster, Machine
from lab.environment import WORKER_LOGS
from lab.servers.process import find_program
from lab.services import airflow_services, postgres, rabbitmq, worker
from lab.supervise import Supervisor
from tests.e2e.deployment import FQRN, WITH_CELERY, Deployment, TestLab
from tests.e2e.kills import COMMIT, DAG, TITLE
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
NIGHT_S = 480.0
BACK_S = 240.0  # a broken connection is noticed by its heartbeats
SOON_S = 180.0
CONSUMER_TIMEOUT = timedelta(seconds=60)
LONG_TASK_S = 200  # RabbitMQ looks once a minute
TOKEN_S = 150
"""For how long the token in a message lasts: Airflow fails a task whose message comes again with one that has ended."""
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
    patch.setitem(WITH_CELERY, "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT", str(TOKEN_S))
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


def send_all(machine: Machine, sent: signal.Signals) -> None:
    """A signal to every process of a machine: SIGKILL is a loss of power, SIGSTOP freezes it."""
    pids = subprocess.run(
        [str(find_program("ip")), "netns", "pids", machine.namespace], capture_output=True, text=True, check=True
    )
    for pid in pids.stdout.split():
        os.kill(int(pid), sent)


def running_tasks(machine: Machine) -> list[str]:
    """The command lines of the task processes of a machine."""
    pids = subprocess.run(
        [str(find_program("ip")), "netns", "pids", machine.namespace], capture_output=True, text=True, check=True
    )
    lines = [Path(f"/proc/{pid}/cmdline") for pid in pids.stdout.split()]
    texts = [line.read_bytes().replace(b"\0", b" ").decode() for line in lines if line.exists()]
    return [text for text in texts if text.startswith(TITLE)]


def cable(deployment: Deployment, machine: Machine, state: str) -> None:
    subprocess.run(
        [str(find_program("ip")), "link", "set", cluster(deployment).link(machine), state],
        check=True,
        capture_output=True,
    )


class HeldNight:
    """A night that was begun: the commits of some artifacts are held, on at least two workers.

    `busy`: what each of these workers, by address, is publishing; `machines`: they, in the order of their addresses.
    """

    def __init__(self, deployment: Deployment, run: str, date: str) -> None:
        self.deployment = deployment
        self.run = run
        self.build = Build(date, slot="faults")
        for number in range(ARTIFACTS):
            self.build.add(f"P{number:02}", "x86_64", tree({"lib/own.so": self.content(number)}))
        deployment.drop(self.build)
        gateway = deployment.gateway_proxy
        reserving = gateway.hold(method="POST", path=COMMIT)
        deployment.trigger(DAG, run, slot="faults", build_date=date)
        reserving.wait(SOON_S)
        held = deployment.rest("GET", "/pools/publish")["slots"]
        self.commits = [gateway.hold(method="POST", path=COMMIT) for _ in range(held)]
        reserving.release()
        for commit in self.commits:
            commit.wait(SOON_S)
        self.busy = self.publishing()
        assert sum(map(len, self.busy.values())) == held
        machines = {machine.address: machine for machine in cluster(deployment).machines}
        assert self.busy.keys() <= machines.keys()
        assert len(self.busy) > 1, "one worker had all"
        self.machines = [machines[address] for address in sorted(self.busy)]

    def content(self, number: int) -> bytes:
        return f"of {number} in {self.run} ".encode() * 100

    def publishing(self) -> dict[str, list[str]]:
        """Address of a worker -> the artifacts that it is publishing."""
        found: dict[str, list[str]] = {}
        for task in self.tasks():
            if task["state"] == "running":
                found.setdefault(task["hostname"], []).append(task["rendered_map_index"])
        return found

    def tasks(self) -> list[dict[str, Any]]:
        tasks = self.deployment.tasks(DAG, self.run)
        return [task for task in tasks if task["task_id"] == "artifact.publish"]

    def publishers(self) -> set[str]:
        """The addresses of the workers that published something."""
        return {task["hostname"] for task in self.tasks() if task["state"] == "success"}

    def tried_again(self) -> set[str]:
        return {task["rendered_map_index"] for task in self.tasks() if task["try_number"] > 1}

    def check_all_is_there(self) -> None:
        """Every artifact once, with its content, and nothing left behind."""
        publications = self.deployment.publications(DAG, self.run)
        assert {name: publication.state.value for name, publication in publications.items()} == dict.fromkeys(
            [f"P{number:02}/x86_64" for number in range(ARTIFACTS)], "published"
        )
        repository = self.deployment.site.repository(FQRN)
        for number in range(ARTIFACTS):
            path = self.build.destination(f"P{number:02}", "x86_64")
            assert repository.revision.read(f"{path}/lib/own.so") == self.content(number)
        assert self.deployment.problems() == ()
        assert self.deployment.leases() == []


@pytest.mark.timeout(1500)
def test_a_night_survives_a_dead_worker_a_cut_off_one_and_a_restart_of_the_broker(workers: Deployment) -> None:
    before, gateway = workers.revision(), workers.gateway_proxy
    supervisor = Supervisor(workers.place)
    try:
        night = HeldNight(workers, RUN, DATE)
        busy = night.busy
        dead, cut, *_ = night.machines
        send_all(dead, signal.SIGKILL)
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
    assert before < after <= before + 1 + ARTIFACTS
    night.check_all_is_there()
    assert night.tried_again() >= {*busy[dead.address], *busy[cut.address]}

    # both are workers again, and what they had begun changes nothing
    back = [worker(workers.lab, machine) for machine in (dead, cut)]
    workers.wait_until(lambda: not any(one.answers() for one in back), "both answer", BACK_S)
    assert workers.revision() == after


@pytest.mark.timeout(1500)
def test_a_night_survives_a_restart_of_the_database_and_a_frozen_worker_that_wakes_changes_nothing(
    workers: Deployment,
) -> None:
    before, gateway = workers.revision(), workers.gateway_proxy
    supervisor = Supervisor(workers.place)
    night = None
    try:
        night = HeldNight(workers, "frozen", "2026-11-15")
        frozen, *_ = night.machines
        send_all(frozen, signal.SIGSTOP)
        supervisor.stop_programs(["postgres"], timeout_s=60)
        for commit in night.commits:
            if commit.host != frozen.address:
                commit.release()
        supervisor.start_program("postgres")
        workers.wait_until(lambda: postgres(workers.lab).answers() is None, "PostgreSQL answers", 60)
        api = next(one for one in airflow_services(workers.lab) if one.where == workers.lab.airflow_url)
        workers.wait_until(lambda: api.answers() is None, "Airflow answers, and its scheduler works", SOON_S)
        seen = workers.follow(DAG, night.run, NIGHT_S)
        assert seen.state == "success"
        assert frozen.address not in night.publishers()
        assert night.tried_again() >= {*night.busy[frozen.address]}
        night.check_all_is_there()
        after = workers.revision()
        assert before < after <= before + 1 + ARTIFACTS

        # what it had sent, and what it does when it wakes, comes after the end of its leases
        for commit in night.commits:
            commit.release()
        send_all(frozen, signal.SIGCONT)
        for commit in night.commits:
            assert commit.done.wait(SOON_S)
        workers.wait_until(lambda: not running_tasks(frozen), "its tasks have ended", BACK_S)
        workers.wait_until(lambda: not worker(workers.lab, frozen).answers(), "it takes tasks again", BACK_S)
    finally:
        gateway.clear()
        if night:
            send_all(night.machines[0], signal.SIGCONT)
    assert workers.revision() == after
    night.check_all_is_there()


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
