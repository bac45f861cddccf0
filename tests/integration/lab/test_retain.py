"""Old runs go from a real database of Airflow: what is newer, and what a run keeps that has not ended, stays."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, insert, select, types
from typer.testing import CliRunner

from lab import retain
from lab.commands.services import app
from lab.environment import Lab, LabFolders
from lab.errors import LabError
from lab.ports import Ports
from lab.retain import DATABASE, clean_database, oldest_at_work
from lab.secrets import load_or_create
from lab.servers.process import ServerProcess
from lab.services import postgres_server
from tests.fakes import airflowhome

NOW = datetime.now(UTC)
TABLES = ("dag_run", "task_instance", "xcom", "log")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Airflow's database of a lab, its tables made from Airflow's models; nothing else runs."""
    airflowhome.use()
    from airflow.models import import_all_models
    from airflow.models.base import Base

    place = LabFolders(tmp_path_factory.mktemp("retain") / "var")
    lab = Lab(place, Ports.unused(), load_or_create(place.secrets))
    place.log.mkdir(parents=True, exist_ok=True)
    place.airflow_home.mkdir(parents=True, exist_ok=True)
    server = postgres_server(lab)
    server.prepare()
    process = ServerProcess(
        "postgres", server.command(), log=place.log / "postgres.log", ready=lambda: server.answer() is None
    )
    process.start()
    try:
        server.ensure_database("airflow", lab.secrets.airflow_database_password)
        import_all_models()
        engine = create_engine(lab.environment()[DATABASE])
        Base.metadata.create_all(engine)
        engine.dispose()
        yield lab
    finally:
        process.stop()


@pytest.fixture(scope="module")
def engine(lab: Lab) -> Iterator[Engine]:
    made = create_engine(lab.environment()[DATABASE])
    yield made
    made.dispose()


@pytest.fixture
def database(engine: Engine) -> Iterator[Engine]:
    """It has no runs yet."""
    yield engine
    with engine.begin() as connection:
        for name in reversed(TABLES):
            connection.execute(reflected(engine).tables[name].delete())


@contextlib.contextmanager
def in_this_process(database: Engine) -> Iterator[None]:
    """`airflow` as a function: a process would take six seconds for its imports. One test has it as a process."""
    from airflow import settings
    from airflow.cli.cli_parser import get_parser
    from sqlalchemy.orm import scoped_session, sessionmaker

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        said, error = io.StringIO(), ""
        words = get_parser().parse_args(list(command[1:]))
        with contextlib.redirect_stdout(said):
            try:
                words.func(words)
            except Exception as fault:  # noqa: BLE001 - whatever it is, the program would end with it
                error = str(fault)
        return subprocess.CompletedProcess(command, int(bool(error)), said.getvalue(), error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "Session", scoped_session(sessionmaker(bind=database, expire_on_commit=False)))
        patch.setattr(retain.subprocess, "run", run)
        yield


@cache
def reflected(engine: Engine) -> MetaData:
    found = MetaData()
    found.reflect(engine)
    return found


def a_run(engine: Engine, name: str, *, days: int, state: str, task_days: int | None = None) -> None:
    """A run with a task, its XCom, and a line of the audit log; as old as said."""
    tables = reflected(engine)
    at, began = NOW - timedelta(days=days), NOW - timedelta(days=days if task_days is None else task_days)
    names = {"dag_id": "nightly", "run_id": name, "task_id": "publish", "map_index": -1}
    with engine.begin() as connection:

        def add(table: str, **said: Any) -> Any:
            known = tables.tables[table]
            values = {one.name: _some(one) for one in known.columns if _needed(one)}
            values |= {key: value for key, value in {**names, **said}.items() if key in known.columns}
            done = connection.execute(insert(known).values(**values))
            return done.inserted_primary_key

        (run,) = add(
            "dag_run", state=state, run_type="manual", start_date=at, queued_at=at, run_after=at, logical_date=at,
            end_date=at if state == "success" else None,
        )  # fmt: skip
        add("task_instance", id=os.urandom(16).hex(), state=state, start_date=began)
        add("xcom", dag_run_id=run, key="return_value", timestamp=began)
        add("log", dttm=began, event="running")


def _needed(column: Any) -> bool:
    return not (column.nullable or column.server_default is not None or column.autoincrement is True)


def _some(column: Any) -> Any:
    kind = column.type
    if isinstance(kind, types.DateTime):
        return NOW
    if isinstance(kind, types.Integer):
        return 0
    if isinstance(kind, types.Boolean):
        return False
    return b"" if isinstance(kind, types.LargeBinary) else "x"


def left(engine: Engine) -> Mapping[str, set[str]]:
    tables = reflected(engine).tables
    with engine.connect() as connection:
        # the audit log has a line of the command itself, which is of no run
        return {name: set(connection.scalars(select(tables[name].c.run_id))) - {None} for name in TABLES}


def everywhere(*runs: str) -> Mapping[str, set[str]]:
    return {name: set(runs) for name in TABLES}


def retained(lab: Lab, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(Lab, "from_environment", classmethod(lambda _: lab))
    done = CliRunner().invoke(app, ["retain", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_is_older_goes_and_what_is_newer_or_of_a_run_that_has_not_ended_stays(
    lab: Lab, database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(database, "before", days=90, state="success")
    a_run(database, "waits", days=70, state="queued")
    a_run(database, "since", days=65, state="success")
    a_run(database, "new", days=59, state="success")
    logs = lab.place.airflow_home / "logs" / "dag_id=nightly"
    for name, days in (("before", 90), ("since", 65), ("new", 59)):
        file = logs / f"run_id={name}" / "attempt=1.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a line")
        at = (NOW - timedelta(days=days)).timestamp()
        os.utime(file, (at, at))
    with in_this_process(database):
        assert "would go: 1 log files" in retained(lab, monkeypatch, "--dry-run")
    assert left(database) == everywhere("before", "waits", "since", "new")
    said = retained(lab, monkeypatch)
    assert "nightly waits, which has not ended" in said
    assert "removed: 1 log files" in said
    assert left(database) == everywhere("waits", "since", "new")

    runs = reflected(database).tables["dag_run"]
    with database.begin() as connection:
        connection.execute(runs.update().where(runs.c.run_id == "waits").values(state="success"))
    with in_this_process(database):
        assert "removed: 1 log files" in retained(lab, monkeypatch)
    assert left(database) == everywhere("new")
    assert [path.name for path in logs.iterdir() if any(path.iterdir())] == ["run_id=new"]


@pytest.mark.parametrize(
    ("state", "task_days", "since"), [("running", None, 70), ("queued", None, 70), ("running", 80, 80)]
)
def test_the_oldest_of_a_run_that_has_not_ended_is_found_and_of_one_that_was_cleared_its_oldest_task(
    lab: Lab, database: Engine, state: str, task_days: int | None, since: int
) -> None:
    url = lab.environment()[DATABASE]
    assert oldest_at_work(url) is None
    a_run(database, "ended", days=90, state="failed")
    a_run(database, "open", days=70 if task_days is None else 1, state=state, task_days=task_days)
    a_run(database, "younger", days=2, state="running")
    found = oldest_at_work(url)
    assert found is not None
    assert (found.run, (NOW - found.since).days) == ("open", since)


def test_a_database_that_does_not_answer_is_said_without_its_password() -> None:
    with pytest.raises(LabError) as caught:
        oldest_at_work("postgresql+psycopg2://u:hunter2@127.0.0.1:1/d")
    assert "hunter2" not in str(caught.value)


def test_a_table_that_cannot_be_cleaned_is_told(lab: Lab, database: Engine) -> None:
    a_run(database, "old", days=61, state="success")
    with database.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE holds (run INTEGER REFERENCES dag_run (id) ON DELETE RESTRICT)")
        connection.exec_driver_sql("INSERT INTO holds SELECT id FROM dag_run")
    try:
        with in_this_process(database), pytest.raises(LabError, match="airflow db clean ended with code"):
            clean_database(lab.environment(), NOW - timedelta(days=60), dry_run=False)
        assert left(database)["dag_run"] == {"old"}
    finally:
        with database.begin() as connection:
            connection.exec_driver_sql("DROP TABLE holds")
