"""Ledgers to test on: SQLite in a folder, and a real MariaDB that this suite starts itself."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.lab.servers.mariadb import MariaDbServer
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate


@pytest.fixture(scope="session")
def mariadb(need: Callable[[str], str]) -> Iterator[MariaDbServer]:
    """One server for the whole suite; every test gets a database of its own.

    Its files are not below pytest's temporary folder: each start of pytest, in any checkout, makes that folder private
    again, and the account that the server runs as could open no further table.
    """
    need("mariadbd")
    with tempfile.TemporaryDirectory(prefix="nightshift-mariadb-") as folder:
        Path(folder).chmod(0o711)
        with MariaDbServer(Path(folder) / "server") as server:
            yield server


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    """URL and password of an empty ledger."""
    if request.param == "sqlite":
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
def ledger(empty):
    """An engine on a migrated ledger."""
    migrate(empty)
    return empty
