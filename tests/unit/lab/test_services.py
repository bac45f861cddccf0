"""A faulty service of a group is known from what it said of itself; a gateway runs where a repository needs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.environment import Lab, LabFolders
from lab.ports import Ports
from lab.secrets import LabSecrets
from lab.services import NotReadyReason, ServiceNotReady, services, wait


@pytest.mark.parametrize(
    ("answer", "dead", "services"),
    [
        ("nothing answers", NotReadyReason("it ended", "triggerer"), ("triggerer",)),
        (NotReadyReason("not healthy yet", "scheduler", "triggerer"), None, ("scheduler", "triggerer")),
        ("the scheduler is named in words only", None, ()),
    ],
)
def test_a_service_that_does_not_become_ready_is_named(
    answer: str, dead: str | None, services: tuple[str, ...]
) -> None:
    with pytest.raises(ServiceNotReady) as caught:
        wait(lambda: answer, alive=lambda: dead, timeout_s=0)
    assert caught.value.services == services


CONFIG = """
stores: {cvmfs: {url: "file:cvmfs"}}
gateway: {port: "${NIGHTSHIFT_GATEWAY_PORT}"}
repositories:
  a.example.org: {store: cvmfs, public_url: "file:cvmfs/a.example.org", public_key: a.pub, gateway: own}
"""


@pytest.mark.parametrize(
    ("connection", "runs"),
    [
        ({"host": "127.0.0.1"}, True),
        ({"host": "127.0.0.1", "port": 4930}, True),
        ({"host": "127.0.0.1", "port": 4931}, False),
        ({"host": "http://gateway.example.org:4929"}, False),
        (None, True),
    ],
)
def test_a_lab_has_no_gateway_where_every_repository_is_behind_one_that_exists(
    connection: dict[str, object] | None, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text(CONFIG)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", "site.yaml")
    monkeypatch.delenv("AIRFLOW_CONN_OWN", raising=False)
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_OWN", json.dumps({"login": "key", "password": "secret", **connection}))
    lab = Lab(LabFolders(tmp_path / "var"), Ports(gateway=4930), LabSecrets.generate())
    assert ("gateway" in [service.name for service in services(lab, airflow=False)]) is runs
