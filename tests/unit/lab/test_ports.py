"""Ports: moved by the environment, refused when they clash, named with their holder when they are taken."""

import os
import re
import socket
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st

from lab.errors import LabError
from lab.ports import LOOPBACK, Ports, check_free, free_port, holder, variable
from tests.fakes.airflowhome import ROOT

NAMES = [field.name for field in fields(Ports)]


@given(st.lists(st.integers(1, 65535), min_size=len(NAMES), max_size=len(NAMES), unique=True))
def test_ports_survive_the_way_through_the_environment(numbers: list[int]) -> None:
    ports = Ports(**dict(zip(NAMES, numbers, strict=True)))
    assert Ports.from_environment(ports.to_environment()) == ports


def test_the_defaults_lie_below_the_range_of_outgoing_connections_and_unused_ones_are_free() -> None:
    assert Ports.from_environment({"NIGHTSHIFT_S3_PORT": ""}) == Ports()
    assert all(getattr(Ports(), name) < 32768 for name in NAMES)
    ports = Ports.unused()
    assert len({getattr(ports, name) for name in NAMES}) == len(NAMES)
    assert all(getattr(ports, name) < 32768 for name in NAMES)
    check_free(ports, NAMES)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        *(
            ({"NIGHTSHIFT_S3_PORT": text}, "^NIGHTSHIFT_S3_PORT=")
            for text in ("0", "65536", "-1", "http", "80 80", "1e3")
        ),
        *(({"NIGHTSHIFT_PORT_OFFSET": text}, "^NIGHTSHIFT_PORT_OFFSET=") for text in ("-1", "x", "30001")),
        (
            {"NIGHTSHIFT_S3_PORT": "5000", "NIGHTSHIFT_GATEWAY_PORT": "5000"},
            "^gateway and s3 share port 5000: move one with NIGHTSHIFT_GATEWAY_PORT=",
        ),
    ],
)
def test_the_message_names_the_variable_of_a_wrong_port(environment: dict[str, str], words: str) -> None:
    with pytest.raises(LabError, match=words):
        Ports.from_environment(environment)


def test_the_message_names_a_taken_port_with_its_holder_and_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert holder(port).endswith(f"(pid {os.getpid()})")
        words = rf"(?s){port} for gateway by .*{os.getpid()}.*export {variable('gateway')}="
        with pytest.raises(LabError, match=words):
            check_free(Ports(gateway=port), ["gateway"])
    check_free(Ports(gateway=port), ["gateway"])


def test_all_taken_ports_are_named_at_once_and_what_is_said_to_be_exported_helps() -> None:
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind((LOOPBACK, 0))
            taken.listen()
        ports = replace(Ports.unused(), s3=one.getsockname()[1], s3_grpc=other.getsockname()[1])
        with pytest.raises(LabError) as seen:
            check_free(ports, NAMES[:3])
        moved = dict(re.findall(r"export (\w+_PORT)=(\d+)", str(seen.value)))
        assert list(moved) == ["NIGHTSHIFT_S3_PORT", "NIGHTSHIFT_S3_GRPC_PORT"]
        check_free(Ports.from_environment(moved), ["s3", "s3_grpc"])


def test_an_offset_moves_all_ports_but_those_that_are_given() -> None:
    ports = Ports.from_environment({"NIGHTSHIFT_PORT_OFFSET": "100", "NIGHTSHIFT_S3_PORT": "9000"})
    assert (ports.s3, ports.gateway, ports.airflow) == (9000, 5029, 8180)
    # what the lab's programs get stays as it is though they see the offset, too
    assert Ports.from_environment({"NIGHTSHIFT_PORT_OFFSET": "100", **ports.to_environment()}) == ports


def test_the_operations_page_lists_every_port_with_its_variable() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    for name in NAMES:
        assert re.search(rf"\| `{variable(name)}` \| {getattr(Ports(), name)} \|", text), name


def test_free_ports_are_different_and_out_of_the_way_of_outgoing_connections() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    assert all(12_000 <= port < 32_000 for port in ports)


def test_two_processes_that_look_at_the_same_time_get_different_free_ports() -> None:
    code = "import random; from lab.ports import free_port; random.seed(7); print(free_port(), flush=True); input()"
    command = [sys.executable, "-c", code]
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second,
    ):
        ports = [int(process.stdout.readline()) for process in (first, second) if process.stdout is not None]
        for process in (first, second):
            process.communicate(b"\n")
    assert len(set(ports)) == 2
