"""`nightshift gateway serve` as a process of its own, with a real repository, and a second gateway beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.gateway import app
from include.cvmfs.commit.commit import NewTag
from include.cvmfs.format.keys import GatewayKey, save_gateway_key
from include.gateway import errors
from lab.ports import free_port
from tests.fakes.apart import change
from tests.fakes.refused import refused
from tests.site import FQRN, KEY_ID, SECRET, Deployment

LONGEST_S = 200  # for a command that takes 5 s on a machine of its own
ROOT = Path(__file__).parents[3]


class GatewayProcess(Deployment):
    """A site with one repository on a file store, and its gateway process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.keys, self.port = folder / "keys", free_port()
        save_gateway_key(self.keys, FQRN, GatewayKey(KEY_ID, SECRET))
        gateway = {"port": self.port, "max_lease_time_s": 60, "state": f"{folder}/state.db", "keys": str(self.keys)}
        self.with_repository().configure(gateway=gateway)
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway_client = self.client()

    def serve(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "include.cli.main", "gateway", "serve"],
            env={**os.environ, **self.environment, "NIGHTSHIFT_VAR": str(self.folder), "PYTHONPATH": str(ROOT)},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for line in self.process.stderr or ():
            if b'"gateway listening"' in line:
                break
        else:
            pytest.fail(f"the gateway did not start: exit code {self.process.wait()}")
        self.gateway_client.ping()

    def terminate(self) -> bytes:
        """Return what it said last."""
        self.process.terminate()
        return self.process.communicate(timeout=LONGEST_S)[1]

    def stop(self) -> None:
        super().stop()
        if self.process.poll() is None:
            self.terminate()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[GatewayProcess]:
    deployment = GatewayProcess(tmp_path)
    deployment.serve()
    yield deployment
    deployment.stop()


def test_it_commits_reads_keys_again_stops_cleanly_and_logs_lines_of_json_without_tokens(
    deployment: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_changes_of_one_base_are_kept(deployment)
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)
    token = a_lease_is_shown_as_a_table_and_as_json(deployment)
    said = keys_are_read_again(deployment) + deployment.terminate()
    assert deployment.process.returncode in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in said.decode().splitlines()]
    granted = [line for line in lines if line["event"] == "lease granted"]
    assert {line["path"] for line in granted} == {f"{FQRN}{path}" for path in ("/a", "/b", "/shown", "/kept")}
    assert len({line["trace"] for line in granted}) == len(granted)
    assert token[:52] not in said.decode()


def both_changes_of_one_base_are_kept(deployment: GatewayProcess) -> None:
    client, first = deployment.gateway_client, deployment.head().manifest
    for number, path in enumerate(("/a", "/b"), first.revision + 1):
        with client.lease(FQRN, path, hostname="h") as lease:
            new = change(deployment.store, FQRN, path, first.root)[1]
            assert client.commit(lease, first.root, new, tag=NewTag(f"t{number}", "d")) == number
            assert client.commit(lease, first.root, new, tag=NewTag(f"t{number}", "d")) == number
    repository = deployment.head()
    assert repository.manifest.revision == first.revision + 2
    assert all(repository.revision.lookup(path) for path in ("/a", "/b"))


def a_lease_is_shown_as_a_table_and_as_json(deployment: GatewayProcess) -> str:
    """Return its token."""
    with deployment.gateway_client.lease(FQRN, "/shown", hostname="[run]/task") as lease:
        table, shown = (CliRunner().invoke(app, ["leases", *options]).stdout for options in ([], ["--json"]))
    [row] = json.loads(shown)
    assert (row["path"], row["key"], row["holder"]) == (f"{FQRN}/shown", KEY_ID, "[run]/task")
    assert 0 < row["seconds_left"] <= 60
    assert "[run]/task" in table
    return lease.token


def keys_are_read_again(deployment: GatewayProcess) -> bytes:
    """On a hang-up; keys that are bad change nothing. What the gateway said."""
    process, said = deployment.process, b""

    def hang_up() -> str:
        nonlocal said
        process.send_signal(signal.SIGHUP)
        for line in process.stderr or ():
            said += line
            if "configuration" in (event := json.loads(line)["event"]):
                return str(event)
        raise AssertionError("the gateway ended")

    good = deployment.keys / f"{FQRN}.gw"
    before = good.read_text()
    good.chmod(0o600)
    good.write_text("no key at all")
    assert hang_up() == "configuration refused, the old one stays"
    deployment.gateway_client.drop(deployment.gateway_client.acquire(FQRN, "/kept", hostname="h"))
    good.write_text("plain_text worker another-secret\n")
    assert hang_up() == "configuration read again"
    with refused(errors.BAD_SIGNATURE):
        deployment.gateway_client.acquire(FQRN, "/refused", hostname="h")
    good.write_text(before)
    assert hang_up() == "configuration read again"
    return said
