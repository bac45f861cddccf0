"""The broker of a lab with Celery: who takes from a queue, and that nothing of it leaves its address."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from celery import Celery

from include.monitoring.airflow_checks import clocks, consumers, judged_clocks
from include.monitoring.findings import Severity
from lab.ports import LOOPBACK, free_port
from lab.servers.process import ServerProcess
from lab.servers.rabbitmq import RabbitServer
from tests.fakes.refused import refused

pytestmark = pytest.mark.server("rabbitmq-server")


def answers(url: str) -> bool:
    try:
        consumers(url, ())
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    server = RabbitServer(
        folder / "r", LOOPBACK, free_port(), free_port(), free_port(), "not-a-secret", timedelta(hours=26)
    )
    server.prepare()
    process = ServerProcess(
        "rabbitmq", server.command(), log=folder / "log", ready=lambda: answers(server.url), env=server.environment()
    )
    with process:
        yield server
    for one in psutil.process_iter():  # Erlang's names outlive their nodes
        if one.name() == "epmd" and one.environ().get("ERL_EPMD_PORT") == str(server.names_port):
            os.kill(one.pid, signal.SIGTERM)


def test_a_queue_is_served_by_those_who_take_from_it(broker: RabbitServer) -> None:
    assert consumers(broker.url, ["publish", "benchmark"]) == {"publish": 0, "benchmark": 0}
    with Celery(broker=broker.url).connection_for_read() as connection:
        channel = connection.channel()
        channel.queue_declare("publish")
        channel.basic_consume("publish")
        assert consumers(broker.url, ["publish", "benchmark"]) == {"publish": 1, "benchmark": 0}


def test_the_clock_of_a_worker_is_known_whatever_its_time_zone(broker: RabbitServer, tmp_path: Path) -> None:
    assert clocks(broker.url) == {}
    words = (sys.executable, "-m", "celery", "--broker", broker.url, "worker", "--pool", "solo", "--hostname", "w@far")
    place = {**os.environ, "TZ": "Asia/Kathmandu", "C_FORCE_ROOT": "true"}
    with ServerProcess("worker", words, log=tmp_path / "log", ready=lambda: bool(clocks(broker.url)), env=place):
        ((name, ahead_s),) = clocks(broker.url).items()
    assert name == "w@far"
    assert abs(ahead_s) < 2  # the same clock; a busy machine may be late
    (found,) = judged_clocks({name: -400.0})
    assert (found.severity, found.subject) == (Severity.ERROR, "worker w@far")


def test_a_wrong_password_is_no_answer(broker: RabbitServer) -> None:
    with refused(OSError):
        consumers(broker.url.replace(broker.password, "guess"), ())


def test_everything_listens_on_loopback_and_the_password_is_for_its_owner(broker: RabbitServer) -> None:
    ports = {broker.port, broker.node_port, broker.names_port}
    listening = {
        (one.laddr.ip, one.laddr.port)
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port in ports
    }
    assert {ip for ip, _ in listening} <= {LOOPBACK, "::1"}
    assert {port for _, port in listening} == ports
    assert (broker.directory / "rabbitmq.conf").stat().st_mode & 0o077 == 0
