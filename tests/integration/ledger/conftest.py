"""Ledgers to test on: SQLite in a folder, and a real MariaDB that this suite starts itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.lab.servers.mariadb import MariaDbServer
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate


@pytest.fixture(scope="session")
def mariadb(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """One server for the whole suite; every test gets a database of its own."""
    need("mariadbd")
    folder = tmp_path_factory.mktemp("mariadb")
    # the server runs as an account of its own, which must be able to enter the folders above
    for path in (folder, *folder.parents):
        if path == Path(path.anchor) or path.stat().st_mode & 0o005 == 0o005 or path.owner() != folder.owner():
            break
        path.chmod(path.stat().st_mode | 0o055)
    with MariaDbServer(folder / "server") as server:
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
