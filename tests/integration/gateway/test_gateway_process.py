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
from lab.servers.process import free_port
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
        self.processes: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "include.cli.main", "gateway", *words],
            env={**os.environ, **self.environment, "NIGHTSHIFT_VAR": str(self.folder), "PYTHONPATH": str(ROOT)},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        process = self.command("serve")
        assert process.stderr is not None
        for line in process.stderr:
            if b'"gateway listening"' in line:
                break
        else:
            pytest.fail(f"the gateway did not start: exit code {process.wait()}")
        self.gateway_client.ping()
        return process

    def stop(self) -> None:
        super().stop()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=LONGEST_S)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[GatewayProcess]:
    """One that a test starts and ends as it likes."""
    deployment = GatewayProcess(tmp_path)
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, subprocess.Popen[bytes]]]:
    """One whose gateway runs; each test has directories of its own, and leaves keys and process as they are."""
    deployment = GatewayProcess(tmp_path_factory.mktemp("served"))
    yield deployment, deployment.serve()
    deployment.stop()


@pytest.fixture
def running(served: tuple[GatewayProcess, subprocess.Popen[bytes]]) -> GatewayProcess:
    return served[0]


def test_commits_reach_a_real_repository_and_merge(running: GatewayProcess) -> None:
    client, first = running.gateway_client, running.head().manifest
    for number, path in enumerate(("/a", "/b"), first.revision + 1):
        # Both are derived from the first revision: the second commit must keep what the first one made.
        with client.lease(FQRN, path, hostname="h") as lease:
            new = change(running.store, FQRN, path, first.root)[1]
            assert client.commit(lease, first.root, new, tag=NewTag(f"t{number}", "d")) == number
            assert client.commit(lease, first.root, new, tag=NewTag(f"t{number}", "d")) == number
    repository = running.head()
    assert repository.manifest.revision == first.revision + 2
    assert all(repository.revision.lookup(path) for path in ("/a", "/b"))


def test_it_reads_keys_again_stops_cleanly_and_logs_lines_of_json_without_tokens(deployment: GatewayProcess) -> None:
    process = deployment.serve()
    said = keys_are_read_again(deployment, process)
    tokens = []
    for _ in range(3):
        with deployment.gateway_client.lease(FQRN, "/a", hostname="run/task") as lease:
            tokens.append(lease.token)
    process.terminate()
    said += process.communicate(timeout=LONGEST_S)[1]
    assert process.returncode in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in said.decode().splitlines()]
    granted = [line for line in lines if line["event"] == "lease granted" and line["hostname"] == "run/task"]
    assert [line["path"] for line in granted] == [f"{FQRN}/a"] * 3
    assert len({line["trace"] for line in granted}) == 3
    assert not any(token[:52] in said.decode() for token in tokens)


def test_leases_are_shown_as_a_table_and_as_json(running: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    with running.gateway_client.lease(FQRN, "/a", hostname="[run]/task"):
        table, shown = (CliRunner().invoke(app, ["leases", *options]).stdout for options in ([], ["--json"]))
    [row] = json.loads(shown)
    assert (row["path"], row["key"], row["holder"]) == (f"{FQRN}/a", KEY_ID, "[run]/task")
    assert 0 < row["seconds_left"] <= 60
    assert "[run]/task" in table


def keys_are_read_again(deployment: GatewayProcess, process: subprocess.Popen[bytes]) -> bytes:
    """On a hang-up; keys that are bad change nothing. What the gateway said."""
    assert process.stderr is not None
    said = b""

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
    deployment.gateway_client.drop(deployment.gateway_client.acquire(FQRN, "/a", hostname="h"))
    good.write_text("plain_text worker another-secret\n")
    assert hang_up() == "configuration read again"
    with refused(errors.BAD_SIGNATURE):
        deployment.gateway_client.acquire(FQRN, "/b", hostname="h")
    good.write_text(before)
    assert hang_up() == "configuration read again"
    return said
