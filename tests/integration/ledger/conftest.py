"""Ledgers to test on: SQLite in a folder, and a real MariaDB that this suite starts itself."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from include.ledger.engine import open_ledger
from include.ledger.metadata import metadata
from include.ledger.migrate import migrate
from lab.servers.mariadb import MariaDbServer
from tests.fakes.ledgers import from_a_template


@pytest.fixture(scope="session")
def mariadb(need: Callable[[str], str]) -> Iterator[MariaDbServer]:
    """One server for the whole suite; what migrates gets a database of its own.

    Its files are not below pytest's temporary folder: each start of pytest, in any checkout, makes that folder private
    again, and the account that the server runs as could open no further table.
    """
    need("mariadbd")
    with tempfile.TemporaryDirectory(prefix="nightshift-mariadb-") as folder:
        Path(folder).chmod(0o711)
        with MariaDbServer(Path(folder) / "server") as server:
            yield server


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn."""
    return str(request.param)


@pytest.fixture
def address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    """URL and password of an empty ledger."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db", None
        return
    server = request.getfixturevalue("mariadb")
    name = f"nightshift_{uuid.uuid4().hex[:12]}"
    yield server.create_database(name), server.password
    server.drop_database(name)


@pytest.fixture
def empty(address):
    """An engine on a ledger that has no tables yet."""
    url, password = address
    engine = open_ledger(url, password=password)
    yield engine
    engine.dispose()


@pytest.fixture
def fresh(empty: Engine) -> Engine:
    """An engine on a migrated ledger that nobody used before, whose server has no statistics of other rows."""
    migrate(empty)
    return empty


@pytest.fixture(scope="session")
def on_server(mariadb: MariaDbServer) -> Iterator[Engine]:
    """An engine on a migrated ledger of the server, which all tests share."""
    engine = open_ledger(mariadb.create_database("nightshift_shared"), password=mariadb.password)
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a migrated ledger without rows."""
    if kind == "sqlite":
        engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
        with pytest.MonkeyPatch.context() as patch:
            from_a_template(patch)
            migrate(engine)
        yield engine
        engine.dispose()
        return
    engine = request.getfixturevalue("on_server")
    yield engine
    with engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
