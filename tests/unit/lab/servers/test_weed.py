"""SeaweedFS is started by one command line, wherever it runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from include.storage.kinds import Credentials
from lab.environment import Lab, LabFolders
from lab.ports import LOOPBACK, Ports
from lab.secrets import LabSecrets
from lab.servers.weed import EVERYWHERE, WeedPorts, WeedServer, weed_command
from lab.services import weed

PORTS = WeedPorts(*range(1, 11))


def flags(command: tuple[str, ...] | list[str]) -> dict[str, str]:
    assert command[1:3] == type(command)(["-logtostderr=true", "mini"])
    return dict(word.removeprefix("-").split("=", 1) for word in command[3:])


def test_every_port_has_a_flag_of_its_own() -> None:
    seen = flags(weed_command("weed", Path("/data"), PORTS))
    numbers = {int(value) for name, value in seen.items() if ".port" in name} - {0}
    assert numbers == set(dataclasses.astuple(PORTS))


@pytest.mark.server("weed")
def test_the_lab_and_a_test_s_server_differ_in_places_only(tmp_path: Path) -> None:
    lab = Lab(LabFolders(tmp_path / "var"), Ports(), LabSecrets.generate())
    keys = Credentials("a", "b")
    server = WeedServer(tmp_path / "data", credentials=keys, ports=PORTS, users={"publisher": keys})
    of_lab, of_server = flags(weed(lab).program.command), flags(server.command())
    assert of_lab.keys() - of_server.keys() == {"filer.localSocket", "s3.localSocket"}
    different = {name for name in of_server if of_lab[name] != of_server[name]}
    assert {name.partition(".port")[0] for name in different} == {
        "dir",
        "s3",
        "s3.config",
        "master",
        "volume",
        "filer",
        "admin",
    }


def test_its_parts_find_each_other_on_loopback_also_where_all_may_connect() -> None:
    assert flags(weed_command("weed", Path("/data"), PORTS))["ip.bind"] == LOOPBACK
    opened = flags(weed_command("weed", Path("/data"), PORTS, bind=EVERYWHERE))
    assert (opened["ip"], opened["ip.bind"]) == (LOOPBACK, EVERYWHERE)
