"""Nothing of the lab listens beyond loopback. Comes first: this test pays for the start of the deployment."""

from __future__ import annotations

import ipaddress

import psutil
import pytest

from lab.services import services
from lab.supervise import marked_processes
from tests.e2e.deployment import Deployment

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]


def listening(pids: list[int]) -> dict[tuple[str, int], str]:
    """Address and port -> command line, for all sockets that these processes listen on."""
    return {
        (one.laddr.ip, one.laddr.port): " ".join(psutil.Process(one.pid).cmdline())
        for one in psutil.net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN and one.pid in pids
    }


def test_every_listening_socket_is_on_loopback_and_on_a_port_of_the_lab(deployment: Deployment) -> None:
    seen = listening(marked_processes(deployment.place))
    assert not {place: who for place, who in seen.items() if not ipaddress.ip_address(place[0]).is_loopback}
    lab = deployment.lab
    wanted = {name for service in services(lab, airflow=True) for name in service.ports}
    assert {port for _, port in seen} == {getattr(lab.ports, name) for name in wanted}
