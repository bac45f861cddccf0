"""`nightshift gateway serve` as a process of its own: a real repository, kill -9, and a second gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.commit.commit import Head, NewTag, read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.keys import (
    GatewayKey,
    format_public_key,
    generate_master,
    generate_repository_key,
    save_gateway_key,
    save_signer,
)
from include.cvmfs.revision.repository import Repository
from include.gateway import errors
from include.gateway.client.client import GatewayClient
from include.storage.open import open_store
from include.storage.store import Store
from lab.servers.process import free_port
from tests.fakes.apart import committers
from tests.fakes.refused import refused

FQRN = "nightlies.example.org"
LONGEST_S = 200  # for a command that takes 5 s on a machine of its own
ROOT = Path(__file__).parents[3]


class Deployment:
    """A site with one repository on a file store, and its gateway process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.site = folder / "site.yaml"
        self.site.write_text(
            f"gateway: {{port: {self.port}, max_lease_time_s: 60, state: {folder}/state.db, keys: {folder}/keys}}\n"
            f"stores: {{main: {{url: 'file://{folder}/store'}}}}\n"
            f"repositories: {{{FQRN}: {{store: main, public_url: 'file://{folder}/store/{FQRN}',"
            f" public_key: {folder}/keys/{FQRN}.pub, gateway: gateway_main}}}}\n"
        )
        self.store: Store = open_store(f"file://{folder}/store").child(FQRN)
        now = datetime.now(UTC)
        self.master, signer = generate_master(), generate_repository_key(FQRN, now)
        save_signer(folder / "keys", FQRN, signer)
        save_gateway_key(folder / "keys", FQRN, GatewayKey("night", "night-secret"))
        create_repository(self.store, FQRN, master=self.master, signer=signer, now=now)
        self.client = GatewayClient(f"http://127.0.0.1:{self.port}", "night", "night-secret", timeout_s=20)
        self.processes: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "include.cli.main", "gateway", *words],
            env={
                **os.environ,
                "NIGHTSHIFT_CONFIG": str(self.site),
                "NIGHTSHIFT_VAR": str(self.folder),
                "PYTHONPATH": str(ROOT),
            },
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
        self.client.ping()
        return process

    def head(self) -> Head:
        return read_head(self.store, FQRN)

    def add_directory(self, path: str, base: ObjectHash) -> ObjectHash:
        edit = Edit(CatalogCache(self.store), base)
        edit.make_nested(path, Dirent("", 0o040755, size=4096, linkcount=2, mtime=1_700_000_000))
        new = edit.finish(int(time.time()))
        store_all(self.store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
        return new.hash

    def stop(self) -> None:
        self.client.close()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=LONGEST_S)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """One that a test starts and ends as it likes."""
    deployment = Deployment(tmp_path)
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, subprocess.Popen[bytes]]]:
    """One whose gateway runs; each test has directories of its own, and leaves keys and process as they are."""
    deployment = Deployment(tmp_path_factory.mktemp("served"))
    yield deployment, deployment.serve()
    deployment.stop()


@pytest.fixture
def running(served: tuple[Deployment, subprocess.Popen[bytes]]) -> Deployment:
    return served[0]


def test_commits_reach_a_real_repository_and_merge(running: Deployment) -> None:
    client, first = running.client, running.head().manifest
    for number, path in enumerate(("/a", "/b"), first.revision + 1):
        # Both are derived from the first revision: the second commit must keep what the first one made.
        with client.lease(FQRN, path, hostname="h") as lease:
            new = running.add_directory(path, first.root)
            assert client.commit(lease, first.root, new, tag=NewTag(f"t{number}", "d")) == number
            assert client.commit(lease, first.root, new, tag=NewTag(f"t{number}", "d")) == number
    public = format_public_key(running.master.public_key())
    repository = Repository.open(running.store, fqrn=FQRN, public_keys=[public])
    assert repository.manifest.revision == first.revision + 2
    assert all(repository.revision.lookup(path) for path in ("/a", "/b"))


def test_a_root_that_was_never_stored_is_named_and_the_lease_still_good(running: Deployment) -> None:
    client, before = running.client, running.head().manifest
    with client.lease(FQRN, "/c", hostname="h") as lease:
        with refused(errors.ROOT_MISSING) as missing:
            client.commit(lease, before.root, ObjectHash.parse("1" * 40))
        assert "data/11/" in str(missing.value)
        new = running.add_directory("/c", before.root)
        assert client.commit(lease, before.root, new) == before.revision + 1


@pytest.mark.thorough
def test_leases_survive_kill_9_and_are_committed_after_it(deployment: Deployment) -> None:
    process = deployment.serve()
    [committer] = committers(process.pid)
    base = deployment.head().manifest.root
    lease = deployment.client.acquire(FQRN, "/a", hostname="h")
    before = deployment.client.leases()
    process.send_signal(signal.SIGKILL)
    process.wait(LONGEST_S)
    committer.wait(LONGEST_S)  # it does not outlive its gateway
    with pytest.raises(errors.GatewayUnreachable):
        GatewayClient(f"http://127.0.0.1:{deployment.port}", "night", "night-secret", retries=0).leases()
    deployment.serve()
    assert [(held.path, held.hostname) for held in deployment.client.leases()] == [("/a", "h")]
    assert deployment.client.leases()[0].expires <= before[0].expires
    with pytest.raises(errors.PathBusy):
        deployment.client.acquire(FQRN, "/a", hostname="h2")
    assert deployment.client.commit(lease, base, deployment.add_directory("/a", base)) == 1


def test_a_second_gateway_on_the_same_state_refuses_to_start(
    served: tuple[Deployment, subprocess.Popen[bytes]],
) -> None:
    deployment, first = served
    second = deployment.command("serve", "--port", "0")
    _, said = second.communicate(timeout=LONGEST_S)
    assert second.returncode == 1
    assert f"is in use by process {first.pid}: stop that gateway" in said.decode()
    assert b"Traceback" not in said
    deployment.client.ping()


def test_it_reads_keys_again_stops_cleanly_and_logs_lines_of_json_without_tokens(deployment: Deployment) -> None:
    process = deployment.serve()
    said = keys_are_read_again(deployment, process)
    tokens = []
    for _ in range(3):
        with deployment.client.lease(FQRN, "/a", hostname="run/task") as lease:
            tokens.append(lease.token)
    process.terminate()
    said += process.communicate(timeout=LONGEST_S)[1]
    assert process.returncode in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in said.decode().splitlines()]
    granted = [line for line in lines if line["event"] == "lease granted" and line["hostname"] == "run/task"]
    assert [line["path"] for line in granted] == [f"{FQRN}/a"] * 3
    assert len({line["trace"] for line in granted}) == 3
    assert not any(token[:52] in said.decode() for token in tokens)


def test_leases_are_shown_as_a_table_and_as_json(running: Deployment) -> None:
    with running.client.lease(FQRN, "/a", hostname="[run]/task"):
        shown, said = running.command("leases", "--json").communicate(timeout=LONGEST_S)
        table, _ = running.command("leases").communicate(timeout=LONGEST_S)
    [row] = json.loads(shown)
    assert (row["path"], row["key"], row["holder"]) == (f"{FQRN}/a", "night", "[run]/task")
    assert 0 < row["seconds_left"] <= 60
    assert said == b""
    assert b"[run]/task" in table


def test_without_any_key_it_does_not_start_and_names_the_cure(deployment: Deployment) -> None:
    (deployment.folder / "keys" / f"{FQRN}.gw").unlink()
    process = deployment.command("serve")
    _, said = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 1
    assert "create " in said.decode()
    assert "<fqrn>.gw" in said.decode()


def keys_are_read_again(deployment: Deployment, process: subprocess.Popen[bytes]) -> bytes:
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

    good = deployment.folder / "keys" / f"{FQRN}.gw"
    before = good.read_text()
    good.chmod(0o600)
    good.write_text("no key at all")
    assert hang_up() == "configuration refused, the old one stays"
    deployment.client.drop(deployment.client.acquire(FQRN, "/a", hostname="h"))
    good.write_text("plain_text night another-secret\n")
    assert hang_up() == "configuration read again"
    with refused(errors.BAD_SIGNATURE):
        deployment.client.acquire(FQRN, "/b", hostname="h")
    good.write_text(before)
    assert hang_up() == "configuration read again"
    return said


def test_commits_are_made_in_a_process_of_their_own_that_is_started_again(
    served: tuple[Deployment, subprocess.Popen[bytes]],
) -> None:
    deployment, process = served
    client, before = deployment.client, deployment.head().manifest
    for revision, path in enumerate(("/e", "/f"), before.revision + 1):
        with client.lease(FQRN, path, hostname="h") as lease:
            new = deployment.add_directory(path, before.root)
            assert client.commit(lease, before.root, new) == revision
        [committer] = committers(process.pid)
        committer.kill()
        committer.wait(LONGEST_S)
