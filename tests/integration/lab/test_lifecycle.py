"""The embedded services for real: up, answering as themselves, killed, recovered, down with nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg2  # type: ignore[import-untyped]
import pytest

from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.errors import Forbidden
from lab import lifecycle
from lab.environment import Lab, LabFolders
from lab.errors import LabError, ServiceFailed
from lab.ports import LOOPBACK, Ports
from lab.postgres import Postgres
from lab.secrets import load_or_create
from lab.supervise import Supervisor, marked_processes
from tests.fakes import labsecrets
from tests.fakes.refused import refused


def silent(_: str) -> None:
    """Nobody listens."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    place = LabFolders(tmp_path / "var")
    lab = Lab(place, Ports.unused(), load_or_create(place.secrets))
    yield lab
    lifecycle.down(lab, say=silent)
    assert not marked_processes(place)


def good(lab: Lab) -> set[str]:
    return {one.name for one in lifecycle.status(lab) if one.good}


def pids(lab: Lab) -> dict[str, int]:
    return {one.name: one.pid for one in lifecycle.status(lab) if one.pid}


CONFIGURATION = """
paths: {var: "${NIGHTSHIFT_VAR}"}
ledger: "sqlite:///${NIGHTSHIFT_VAR}/ledger.db"
gateway: {port: "${NIGHTSHIFT_GATEWAY_PORT}", keys: "${NIGHTSHIFT_VAR}/keys", state: "${NIGHTSHIFT_VAR}/state.db"}
stores:
  data: {url: s3://data, endpoint: "http://127.0.0.1:${NIGHTSHIFT_S3_PORT}", connection: store_data}
  cvmfs:
    url: s3://cvmfs
    endpoint: "http://127.0.0.1:${NIGHTSHIFT_S3_PORT}"
    connection: store_cvmfs
    gateway_connection: "${NIGHTSHIFT_GATEWAY_STORE:-}"
    collector_connection: "${NIGHTSHIFT_COLLECTOR_STORE:-}"
repositories:
  first.example.org:
    {store: cvmfs, public_url: "http://127.0.0.1:1/data", public_key: "${NIGHTSHIFT_VAR}/k.pub", gateway: gateway_first}
"""


@pytest.fixture
def config(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of the lab, which this process finds as a shell beside it does."""
    path = tmp_path / "site.yaml"
    path.write_text(CONFIGURATION)
    environment = {"NIGHTSHIFT_CONFIG": str(path), "NIGHTSHIFT_VAR": str(lab.place.var), **lab.ports.to_environment()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.mark.server("weed")
def test_store_and_gateway_come_up_are_restored_after_kills_and_go_down_without_a_trace(lab: Lab, config: Path) -> None:
    lifecycle.up(lab, airflow=False, say=silent)
    assert good(lab) == {"weed", "gateway", "fts"}
    first = pids(lab)
    groups = {os.getpgid(pid) for pid in first.values()}
    assert groups == set(first.values()), "each is the leader of a process group of its own"
    assert (lab.place.sockets / "supervisor.sock").stat().st_mode & 0o777 == 0o700
    assert_no_secret_is_shown(lab)
    store = Site(load(environ=lab.environment()), EnvSecrets(lab.environment())).store("data")
    store.put("kept", b"over a restart")  # the bucket is there
    assert_each_key_does_its_own_work_alone(lab)
    assert_a_process_has_its_own_credentials(lab)

    lifecycle.up(lab, airflow=False, say=silent)
    assert pids(lab) == first, "up again leaves alone what runs"
    moved = Lab(lab.place, Ports.unused(), lab.secrets)
    with refused(LabError):
        lifecycle.up(moved, airflow=False, say=silent)

    os.kill(first["gateway"], signal.SIGKILL)
    lifecycle.up(lab, airflow=False, say=silent)
    assert good(lab) == {"weed", "gateway", "fts"}
    assert pids(lab)["weed"] == first["weed"]

    before = pids(lab)
    assert lifecycle.changed(lab) == []
    lifecycle.restart(lab, say=silent)
    assert good(lab) == {"weed", "gateway", "fts"}
    assert {name for name, pid in pids(lab).items() if pid == before[name]} == {"weed"}

    os.kill(int((lab.place.run / "supervisord.pid").read_text()), signal.SIGKILL)
    told: list[str] = []
    orphans = pids(lab)
    lifecycle.up(lab, airflow=False, say=told.append)
    assert "ending services that an earlier start left behind" in told
    assert good(lab) == {"weed", "gateway", "fts"}
    assert not set(orphans.values()) & set(pids(lab).values())

    assert_a_restart_gives_programs_the_connections_that_the_configuration_got(lab, config)
    assert store.get("kept") == b"over a restart"
    assert lifecycle.down(lab, say=silent) == 3
    assert not marked_processes(lab.place)
    assert lifecycle.down(lab, say=silent) == 0


def assert_a_restart_gives_programs_the_connections_that_the_configuration_got(lab: Lab, config: Path) -> None:
    config.write_text(CONFIGURATION + CONFIGURATION[CONFIGURATION.index("  first") :].replace("first", "second"))
    missing = "AIRFLOW_CONN_GATEWAY_SECOND"
    assert lifecycle.changed(lab) == [missing]
    for command in (("settings", "check", "--no-stores"), ("preflight",)):
        assert missing in checked(*command)["lab"]
    told: list[str] = []
    lifecycle.up(lab, airflow=False, say=told.append)
    assert any(missing in line for line in told)
    assert missing not in psutil.Process(pids(lab)["gateway"]).environ(), "up leaves alone what runs"
    lifecycle.restart(lab, say=silent)
    assert good(lab) == {"weed", "gateway", "fts"}
    assert lifecycle.changed(lab) == []
    assert "lab" not in checked("settings", "check", "--no-stores")
    assert {name for name, pid in pids(lab).items() if missing in psutil.Process(pid).environ()} == {"gateway"}
    assert_a_process_has_its_own_credentials(lab)


def assert_each_key_does_its_own_work_alone(lab: Lab) -> None:
    """The policy is there, for the repositories of the configuration."""
    environment = replace(lab, by_role=True).environment()
    site = Site(load(environ=environment), EnvSecrets(environment))
    fqrn = "first.example.org"
    publisher, gateway, collector = site.repository_store(fqrn), site.gateway_store(fqrn), site.collector_store(fqrn)
    publisher.put("data/ab/object", b"of a publisher")
    gateway.put(".cvmfspublished", b"of the gateway")
    site.store("data").put("index.json", b"{}")
    for forbidden in (
        lambda: publisher.put(".cvmfspublished", b"forged"),
        lambda: publisher.delete(["data/ab/object"]),
        lambda: gateway.delete(["data/ab/object"]),
        lambda: collector.put(".cvmfspublished", b"forged"),
        lambda: site.store("cvmfs").put("elsewhere", b""),
    ):
        with refused(Forbidden):
            forbidden()
    collector.delete(["data/ab/object"])


def assert_a_process_has_its_own_credentials(lab: Lab) -> None:
    """Each service has what it holds, and supervisord, whose environment all have, has nothing."""
    _, credentials, users = lifecycle.split_environment(lab)
    every = {name: value for one in credentials.values() for name, value in one.items()}
    processes = {**pids(lab), "supervisord": int((lab.place.run / "supervisord.pid").read_text())}
    for name, pid in processes.items():
        environment = psutil.Process(pid).environ()
        assert {each: environment[each] for each in every.keys() & environment.keys()} == credentials.get(name, {}), (
            name
        )
        assert lab.secrets.s3_secret_key not in str(environment), name
    assert lab.place.s3_users.read_text() == users
    assert {path.stat().st_mode & 0o777 for path in (lab.place.s3_users, *lab.place.credentials.iterdir())} == {0o600}


def checked(*command: str) -> dict[str, str]:
    """The results of a check in another shell, by the kind of the thing."""
    program = str(Path(sys.executable).parent / "nightshift")
    document = json.loads(subprocess.run([program, *command, "--json"], capture_output=True, text=True).stdout)
    entries = document.get("checked") or document["findings"]
    return {entry.get("kind") or entry["check"]: entry["seen"] for entry in entries}


def assert_no_secret_is_shown(lab: Lab) -> None:
    """Neither in the process table nor in the logs."""
    seen = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    seen += "".join(path.read_text(errors="replace") for path in lab.place.log.iterdir())
    seen += (lab.place.run / "supervisord.conf").read_text()
    for name, secret in labsecrets.by_name(lab.secrets).items():
        if name not in {"gateway_key_id", "s3_access_key"}:  # names of keys, which logs may say
            assert secret not in seen, name


def test_a_taken_port_stops_the_start_before_anything_runs(lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, lab.ports.gateway))
        taken.listen()
        with pytest.raises(LabError, match=rf"(?s){lab.ports.gateway}.*{os.getpid()}.*NIGHTSHIFT_GATEWAY_PORT"):
            lifecycle.up(lab, airflow=False, say=silent)
    assert not Supervisor(lab.place).running()


def test_a_program_that_cannot_run_is_named_with_its_log(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import services

    broken = services.Component("gateway", ("false",))
    monkeypatch.setattr(services, "GATEWAY", broken)
    with refused(ServiceFailed, service="gateway") as failed:
        lifecycle.up(lab, airflow=False, say=silent)
    assert Path(failed.value.log).exists()


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Postgres:
    """A cluster; no server runs on it."""
    folder = tmp_path_factory.mktemp("postgres")
    server = Postgres(folder / "pg", Ports.unused().postgres, "pass word'%", folder / "initdb.log")
    server.prepare()
    return server


def started(server: Postgres) -> subprocess.Popen[bytes]:
    log = server.log.with_name("server.log").open("wb")
    process = subprocess.Popen(server.command(), stdout=log, stderr=log, cwd="/", start_new_session=True)
    for _ in range(600):
        if server.answer() is None:
            return process
        assert process.poll() is None, server.log.with_name("server.log").read_text()
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(server.answer())


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.wait(20)


def test_postgres_wants_the_password_and_keeps_its_databases(postgres: Postgres) -> None:
    process = started(postgres)
    try:
        stranger = Postgres(postgres.data, postgres.port, "guess", postgres.log)
        assert "password authentication failed" in str(stranger.answer())
        postgres.ensure_database("nights", "pass")
        with contextlib.closing(postgres._connect("nights")) as connection, connection.cursor() as cursor:
            # as an older lab left them: all of the superuser
            cursor.execute("CREATE TYPE kind AS ENUM ('a'); CREATE TABLE run (id serial PRIMARY KEY, kind kind)")
            connection.commit()
        postgres.ensure_database("nights", "pass word'%")
        assert postgres.schema_version("nights") is None
        with psycopg2.connect(
            host=LOOPBACK, port=postgres.port, user="nights", password="pass word'%", dbname="nights"
        ) as owner, owner.cursor() as cursor:  # fmt: skip
            cursor.execute("SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
            assert cursor.fetchone() == (False,)
            cursor.execute("ALTER TYPE kind ADD VALUE 'b'")
            cursor.execute("INSERT INTO run (kind) VALUES ('a'); DROP TABLE run; CREATE TABLE other (id int)")
        owner.close()
        assert postgres.server_pid() == process.pid
        with contextlib.closing(postgres._connect("nights")) as connection, connection.cursor() as cursor:
            # or what a killed scheduler had locked would stay locked
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == ("1min",)
    finally:
        stop(process)
    assert postgres.server_pid() is None


def test_postgres_starts_again_after_a_reboot_gave_its_pid_to_another_program(postgres: Postgres) -> None:
    process = started(postgres)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    # a reboot ends them as well; here they notice a moment later, and hold the shared memory until then
    assert not psutil.wait_procs(children, timeout=30)[1]
    pid_file = postgres.data / "postmaster.pid"
    # As after a reboot: the recorded pid lives, and is not PostgreSQL.
    pid_file.write_text("\n".join([str(os.getppid()), *pid_file.read_text().splitlines()[1:]]) + "\n")
    postgres.prepare()
    assert not pid_file.exists()
    stop(started(postgres))


def test_postgres_works_in_a_folder_that_only_we_may_enter_and_not_as_root() -> None:
    with tempfile.TemporaryDirectory(prefix="nightshift-") as outer:
        closed = Path(outer) / "closed"
        closed.mkdir(mode=0o700)
        server = Postgres(closed / "pg", Ports.unused().postgres, "secret", closed / "initdb.log")
        server.prepare()
        process = started(server)
        try:
            assert Path(f"/proc/{process.pid}").stat().st_uid != 0
            for folder in (Path(outer), closed):
                assert folder.stat().st_mode & 0o777 == 0o700, "nothing was opened to everybody"
        finally:
            stop(process)
