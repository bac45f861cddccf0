"""Machines of their own for workers: what they reach, what tells them apart, and that nothing of them is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lab import cluster as clusters
from lab.cluster import Cluster, Machine

pytestmark = [
    pytest.mark.server("rabbitmq-server"),
    pytest.mark.server("mariadbd"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
LOOKS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
    print(socket.gethostname(), "reaches it")
except OSError:
    print(socket.gethostname(), "does not")
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster.choose(2)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def looks(cluster: Cluster, machine: Machine, host: str, port: int) -> str:
    command = cluster.inside(machine, (sys.executable, "-c", LOOKS, host, str(port)))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_workers_reach_the_services_and_not_the_loopback_of_the_machine(cluster: Cluster) -> None:
    with socket.create_server((cluster.address, 0)) as there, socket.create_server(("127.0.0.1", 0)) as private:
        for machine in cluster.machines:
            seen = [looks(cluster, machine, *server.getsockname()) for server in (there, private)]
            assert seen == [f"{machine.address} reaches it", f"{machine.address} does not"]
        cut = cluster.machines[0]
        clusters._ip("link", "set", cluster.link(cut), "down")
        assert looks(cluster, cut, *there.getsockname()) == f"{cut.address} does not"
    assert socket.gethostname() != cut.address


def test_what_is_there_is_left_alone_and_all_of_it_goes(cluster: Cluster) -> None:
    cluster.make()
    assert Cluster.choose(2).number != cluster.number
    cluster.remove()
    cluster.remove()
    names = {str(one.get("ifname")) for one in clusters._asked("link")}
    spaces = {str(one["name"]) for one in clusters._asked("netns", "list")}
    assert not names & {cluster.bridge, *map(cluster.link, cluster.machines)}
    assert not spaces & {machine.namespace for machine in cluster.machines}
