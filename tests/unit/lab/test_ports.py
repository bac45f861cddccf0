"""Ports: moved by the environment, refused when they clash, named with their holder when they are taken."""

import os
import socket
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.lab.errors import LabError, PortTaken
from include.lab.ports import LOOPBACK, Ports, check_free, holder, variable

NAMES = [field.name for field in fields(Ports)]


@given(st.lists(st.integers(1, 65535), min_size=len(NAMES), max_size=len(NAMES), unique=True))
def test_ports_survive_the_way_through_the_environment(numbers: list[int]) -> None:
    ports = Ports(**dict(zip(NAMES, numbers, strict=True)))
    assert Ports.from_environment(ports.to_environment()) == ports


def test_the_defaults_lie_below_the_range_of_outgoing_connections() -> None:
    assert all(getattr(Ports(), name) < 32768 for name in NAMES)


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "80 80", "1e3"])
def test_a_port_that_is_none_is_refused_by_the_name_of_its_variable(text: str) -> None:
    with pytest.raises(LabError, match="NIGHTSHIFT_S3_PORT"):
        Ports.from_environment({"NIGHTSHIFT_S3_PORT": text})


def test_two_services_on_one_port_are_refused() -> None:
    with pytest.raises(LabError, match=r"gateway and s3 share port 5000: move one with NIGHTSHIFT_GATEWAY_PORT"):
        Ports.from_environment({"NIGHTSHIFT_S3_PORT": "5000", "NIGHTSHIFT_GATEWAY_PORT": "5000"})


def test_an_empty_variable_leaves_the_default() -> None:
    assert Ports.from_environment({"NIGHTSHIFT_S3_PORT": ""}) == Ports()


def test_a_taken_port_is_named_with_its_holder_and_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert holder(port).endswith(f"(pid {os.getpid()})")
        with pytest.raises(
            PortTaken, match=rf"port {port} for gateway is taken by .*{os.getpid()}.*{variable('gateway')}"
        ):
            check_free(Ports(gateway=port), ["gateway"])
    check_free(Ports(gateway=port), ["gateway"])


def test_unused_ports_are_all_different_and_free() -> None:
    ports = Ports.unused()
    assert len({getattr(ports, name) for name in NAMES}) == len(NAMES)
    check_free(ports, NAMES)
