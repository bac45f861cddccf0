"""A site of each earlier release goes on with this version: its ledger, gateway, tasks that wait, and its other half.

Each folder `vX.Y.Z` is what `record.py` wrote with that release, and stays as it is.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from alembic.command import upgrade
from sqlalchemy import Connection, Engine, inspect, text

from include.gateway.client.client import GatewayClient
from include.gateway.protocol import authorization
from include.ledger.copies import load_dump
from include.ledger.engine import open_ledger, reading, writing
from include.ledger.migrate import VERSION_TABLE, _config, migrate, pending, version
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.publication import State
from include.provenance.interventions import interventions_of
from include.stageout.states import TransferState
from lab.servers.mariadb import MariaDbServer
from tests.fakes.transfers import recorded, states
from tests.integration.gateway.conftest import REPOSITORY
from tests.upgrade.record import HOLDER, KEY, Recorder, converse, send, service
from triggers.checks import CHECKS

pytestmark = pytest.mark.parametrize(
    "release", sorted(Path(__file__).parent.glob("v*")), ids=lambda folder: folder.name
)


def document(release: Path, name: str) -> Any:
    return json.loads((release / f"{name}.json").read_text())


def restored(release: Path, name: str, file: Path) -> Path:
    """The database of a dump."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((release / f"{name}.sql").read_text())
    return file


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))])
def ledger(request: pytest.FixtureRequest, release: Path, tmp_path: Path) -> Iterator[Engine]:
    """The release's ledger, not yet migrated."""
    was = restored(release, "ledger", tmp_path / "was.db")
    if request.param == "sqlite":
        engine = open_ledger(f"sqlite:///{was}")
        yield engine
        engine.dispose()
        return
    server: MariaDbServer = request.getfixturevalue("mariadb")
    name = f"nightshift_{uuid.uuid4().hex[:12]}"
    engine = open_ledger(server.create_database(name), password=server.password)
    moved(was, engine)
    engine.dispose()  # its connection looks at no foreign keys
    yield engine
    engine.dispose()
    server.drop_database(name)


def moved(was: Path, engine: Engine) -> None:
    """Make the tables of the revision that a ledger in a file has, and take its rows over."""

    def work(connection: Connection) -> None:
        with closing(sqlite3.connect(was)) as old:
            (revision,) = old.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
            config = _config()
            config.attributes["connection"] = connection
            upgrade(config, revision)
            connection.execute(text("SET FOREIGN_KEY_CHECKS = 0"))
            for table in tables_of(old):
                rows = old.execute(f"SELECT * FROM {table}")
                names = [column[0] for column in rows.description]
                columns, values = (", ".join(form.format(name) for name in names) for form in ("`{}`", ":{}"))
                statement = text(f"INSERT INTO {table} ({columns}) VALUES ({values})")
                connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])

    writing(engine, work)


def tables_of(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name for (name,) in names if name != VERSION_TABLE]


def rows_of(ledger: Engine, columns: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of these columns."""
    quoted = {table: ", ".join(f"`{name}`" for name in names) for table, names in columns.items()}
    queries = {table: text(f"SELECT {names} FROM {table}") for table, names in quoted.items()}
    with reading(ledger) as connection:
        return {table: sorted(map(tuple, connection.execute(query)), key=repr) for table, query in queries.items()}


def test_its_ledger_is_migrated_and_every_row_is_read_and_work_goes_on(release: Path, ledger: Engine) -> None:
    with closing(sqlite3.connect(":memory:")) as old:
        old.executescript((release / "ledger.sql").read_text())
        columns = {name: [row[1] for row in old.execute(f"PRAGMA table_info({name})")] for name in tables_of(old)}
    before = rows_of(ledger, columns)
    assert all(before.values()), "each table has a row"
    migrate(ledger)
    assert rows_of(ledger, columns) == before
    done = publications_of_run(ledger, "night/1")
    assert {one.state for one in done} == {State.PUBLISHED}
    assert {one.kind for one in interventions_of(ledger)} >= {"freeze", "thaw"}
    assert TransferState.NEW in states(ledger).values()
    (new,) = recorded(ledger, destination_name="/store/user/ann/later.root")
    assert states(ledger)[new] is TransferState.NEW


def test_its_ledger_is_upgraded_put_back_from_the_copy_and_upgraded_again(
    release: Path, ledger: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The way back of docs/operations.md, go back to the earlier version."""
    copies, revision = tmp_path / "copies", version(ledger)
    before = everything_in(ledger)
    needed = [migration.revision for migration in pending(ledger)]
    assert needed[-1] == migrate(ledger, copies=copies)
    assert not pending(ledger)
    upgraded = everything_in(ledger)
    recorded(ledger, destination_name="/store/user/ann/lost.root")  # of the new version; it goes with it
    (copy,) = copies.iterdir()
    with put_back(ledger, copy, request) as back:
        assert (version(back), [migration.revision for migration in pending(back)]) == (revision, needed)
        assert everything_in(back) == before
        migrate(back, copies=copies)
        assert everything_in(back) == upgraded
        assert len([*copies.iterdir()]) == 2
        (new,) = recorded(back, destination_name="/store/user/ann/later.root")
        assert states(back)[new] is TransferState.NEW


def everything_in(ledger: Engine) -> dict[str, list[tuple[Any, ...]]]:
    with reading(ledger) as connection:
        present = inspect(connection)
        tables = [name for name in present.get_table_names() if not name.startswith("sqlite_")]
        columns = {name: sorted(column["name"] for column in present.get_columns(name)) for name in tables}
    return rows_of(ledger, columns)


@contextmanager
def put_back(ledger: Engine, copy: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The ledger of a copy: a file in the place of the ledger's, or a database that was empty."""
    ledger.dispose()
    if ledger.dialect.name == "sqlite":
        file = Path(str(ledger.url.database))
        aside = file.parent / "aside"
        aside.mkdir()
        for path in file.parent.glob(f"{file.name}*"):
            path.rename(aside / path.name)
        shutil.copy(copy, file)
        yield ledger
        return
    server: MariaDbServer = request.getfixturevalue("mariadb")
    name = f"nightshift_{uuid.uuid4().hex[:12]}"
    back = open_ledger(server.create_database(name), password=server.password)
    with copy.open("rb") as lines:
        load_dump(back, lines)
    yield back
    back.dispose()
    server.drop_database(name)


def test_what_its_tasks_hand_on_is_read_and_has_all_that_it_had(release: Path) -> None:
    for name, forms in document(release, "values").items():
        module, _, kind = name.partition(":")
        for form in forms:
            now = getattr(importlib.import_module(module), kind).from_json(form).to_json()
            assert now | form == now


def test_tasks_that_wait_since_then_are_woken(release: Path) -> None:
    waits = document(release, "waits")
    for name, arguments in waits["checks"].items():
        signature(CHECKS[name].look).bind("connect", **dict.fromkeys(arguments))
    for name, arguments in waits["triggers"].items():
        module, _, kind = name.rpartition(".")
        signature(getattr(importlib.import_module(module), kind)).bind(**dict.fromkeys(arguments))


def test_its_gateway_goes_on_with_the_leases_that_are_held(release: Path, tmp_path: Path) -> None:
    tokens = document(release, "tokens")
    restored(release, "gateway", tmp_path / "state.db")
    with service(tmp_path) as url, GatewayClient(url, *KEY, retries=0) as client:
        assert {(lease.repository, lease.path) for lease in client.leases()} == {
            (REPOSITORY, "/held"), (REPOSITORY, "/paid")
        }  # fmt: skip
        assert not {one.name: one.enabled for one in client.repositories()}["plain.example.org"]
        assert send(url, signed("DELETE", tokens["/held"]))["status"] == 200
        assert send(url, signed("DELETE", tokens["/spent"]))["body"].count("invalid lease")
        assert [lease.path for lease in client.leases()] == ["/paid"]
        # a worker of that release, whose gateway was upgraded below it, renews and commits
        paid = tokens["/paid"]
        assert '"status":"ok"' in send(url, signed("PATCH", paid))["body"]
        (body,) = (
            exchange["request"]["body"] for exchange in document(release, "exchanges")
            if "final_revision" in exchange["reply"]["body"]
        )  # fmt: skip
        assert '"final_revision":1' in send(url, signed("POST", paid, body))["body"]
        assert '"final_revision":1' in send(url, signed("POST", paid, body))["body"], "its reply was lost"
        assert client.leases() == []


def signed(method: str, token: str, body: str = "") -> dict[str, Any]:
    headers = {"authorization": authorization(*KEY, token.encode())}
    return {"method": method, "path": f"/api/v1/leases/{token}", "headers": headers, "body": body}


def test_its_workers_are_answered_as_its_gateway_did(release: Path, tmp_path: Path) -> None:
    with service(tmp_path / "gateway") as url:
        for exchange in document(release, "exchanges"):
            reply = send(url, exchange["request"])
            assert reply["status"] == exchange["reply"]["status"]
            assert reply["headers"] | exchange["reply"]["headers"] == reply["headers"]
            now, was = json.loads(reply["body"]), json.loads(exchange["reply"]["body"])
            assert isinstance(now, list) or now | was == now


def test_its_gateway_is_asked_as_its_workers_did_and_its_replies_are_understood(release: Path) -> None:
    exchanges = document(release, "exchanges")
    with Recorder(replies=exchanges) as recorder:
        heard = converse(f"http://{recorder.address}")
    for exchange, exchange_then in zip(recorder.exchanges, exchanges, strict=True):
        now, then = exchange["request"], exchange_then["request"]
        assert (now["method"], now["path"]) == (then["method"], then["path"])
        assert now["headers"].keys() >= then["headers"].keys()
        # a renewal need not name a time: the gateway's own is taken
        if then["method"] == "POST":
            body = json.loads(now["body"])
            assert body | json.loads(then["body"]) == body
    assert heard == {
        "repositories": ["plain.example.org", REPOSITORY], "leases": [("/arch/x86", HOLDER)], "renewed": True,
        "revision": 1,
    }  # fmt: skip
