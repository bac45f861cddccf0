"""Settings of docker/compose.yaml, given to real servers: users of the store by role, owners of databases."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg2  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from include.cli.main import assemble
from include.settings.secrets import EnvSecrets
from include.storage.errors import Forbidden
from include.storage.kinds import Credentials
from include.storage.open import open_store
from include.storage.store import Store
from lab.ports import LOOPBACK, free_port
from lab.postgres import Postgres, binary
from lab.servers.process import ServerProcess
from lab.servers.weed import WeedServer
from tests.fakes import compose

SECRETS = {name: f"{name.lower().replace('_', '')}0123456789" for name in compose.required()}
FILLED = compose.load(SECRETS)
FQRN = "nightlies.example.org"


def test_keeper_sets_what_each_key_of_the_store_may_do(
    need: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("weed")
    owner = Credentials(SECRETS["S3_ACCESS_KEY"], SECRETS["S3_SECRET_KEY"])
    users = json.loads(FILLED["configs"]["s3-users"]["content"])
    monkeypatch.setattr("lab.servers.weed.identities", lambda *_: users)
    with WeedServer(tmp_path / "weed", credentials=owner, users={"of the file": owner}) as server:
        keeper = FILLED["services"]["keeper"]
        for key, value in keeper["environment"].items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("NIGHTSHIFT_HOME", str(compose.ROOT))
        monkeypatch.setenv("NIGHTSHIFT_VAR", str(tmp_path / "var"))
        monkeypatch.setenv("NIGHTSHIFT_S3_HOST", LOOPBACK)
        monkeypatch.setenv("NIGHTSHIFT_S3_PORT", str(server.ports.s3))
        monkeypatch.setenv("NIGHTSHIFT_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
        for line in re.split(r" && | \|\| [^;]*; ", keeper["command"][-1]):
            words = line.split()[1:]
            done = CliRunner().invoke(assemble(words), words)
            assert done.exit_code == 0, (line, done.output)

        def store(container: str, connection: str, place: str = f"cvmfs/{FQRN}") -> Store:
            secret = EnvSecrets(FILLED["services"][container]["environment"]).get(connection)
            keys = Credentials(secret.login or "", secret.password or "")
            return open_store(f"s3://{place}", credentials=keys, options=server.options(retries=0))

        worker, gateway, collector = (
            store("worker", "store_cvmfs"),
            store("gateway", "store_cvmfs"),
            store("collector", "store_cvmfs_collector"),
        )
        worker.put("data/ab/object", b"of a worker")
        gateway.put(".cvmfstrial", b"of the gateway")
        for refused in (
            lambda: worker.put(".cvmfspublished", b"forged"),
            lambda: worker.delete(["data/ab/object"]),
            lambda: gateway.delete(["data/ab/object"]),
            lambda: collector.put(".cvmfspublished", b"forged"),
            lambda: store("worker", "store_builds").put("data/cd/object", b"with the key of builds"),
            lambda: store("worker", "store_cvmfs", "builds").put("main/index.json", b"with a publisher's key"),
        ):
            with pytest.raises(Forbidden):
                refused()
        collector.delete(["data/ab/object"])
        builds = store("worker", "store_builds", "builds")
        builds.put("main/index.json", b"{}")
        assert [each.key for each in builds.list()] == ["main/index.json"]
        # readers have no key
        public = open_store(f"{server.endpoint}/cvmfs/{FQRN}")
        assert public.get(".cvmfspublished") == gateway.get(".cvmfspublished")


def test_each_database_has_an_owner_that_is_no_superuser_and_sees_no_other(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("databases")
    monkeypatch.setattr("lab.postgres.DATABASE_USER", "postgres")
    roles = FILLED["services"]["postgres"]["environment"]
    postgres = Postgres(folder / "data", free_port(), roles["POSTGRES_PASSWORD"], folder / "log")
    postgres.prepare()
    with ServerProcess(
        "postgres", list(postgres.command()), log=postgres.log, ready=lambda: postgres.answer() is None, cwd=Path("/")
    ):
        path = f"{binary('psql').parent}:{os.environ['PATH']}"
        login = {"PGHOST": LOOPBACK, "PGPORT": str(postgres.port), "PGPASSWORD": postgres.password, "PATH": path}
        script = compose.ROOT / "docker" / FILLED["configs"]["make-databases"]["file"]
        subprocess.run([script], env={**roles, **login}, check=True, capture_output=True)

        def rows(role: str, database: str, query: str) -> list[tuple[object, ...]]:
            password = roles[f"{role.upper()}_PASSWORD"]
            with (
                psycopg2.connect(
                    host=LOOPBACK, port=postgres.port, user=role, password=password, dbname=database
                ) as open_connection,
                open_connection.cursor() as cursor,
            ):
                cursor.execute(query)
                return list(cursor.fetchall())

        for role, other in (("airflow", "celery"), ("celery", "airflow")):
            rights = "SELECT rolsuper, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = current_user"
            assert rows(role, role, rights) == [(False, False, False)]
            assert rows(role, role, "CREATE TABLE trial (id int); SELECT 1") == [(1,)]
            with pytest.raises(psycopg2.OperationalError, match="permission denied"):
                rows(role, other, "SELECT 1")
