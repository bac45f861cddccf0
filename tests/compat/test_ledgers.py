"""Ledgers that earlier commits wrote are migrated and read; what is written now has every column that it had then."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from include.lab.servers.mariadb import MariaDbServer
from tests.compat.corpus import folders, newest, same_json
from tests.compat.ledgers import connector, facts, fill, filled_sqlite, go_on, load_server, opened
from tests.compat.sqldump import load_into, rows_by_table
from tests.integration.ledger.conftest import mariadb

__all__ = ["mariadb"]
VERSION = "ledger_version"
PROSE = (("questions", "body"), ("alerts", "text"), ("summaries", "headline"))
"""Columns for people, which may be worded otherwise."""
FOLDERS = pytest.mark.parametrize("folder", folders("ledger"), ids=lambda folder: folder.name)


def recorded(folder: Path) -> Any:
    return json.loads((folder / "ledger" / "facts.json").read_text())


@FOLDERS
def test_a_ledger_of_sqlite_is_migrated_and_read_and_goes_on(folder: Path, tmp_path: Path) -> None:
    load_into(tmp_path / "ledger.db", (folder / "ledger" / "sqlite.sql").read_bytes())
    with opened(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        assert json.loads(json.dumps(facts(ledger))) == recorded(folder)
        go_on(ledger)


@pytest.mark.server("mariadbd")
@FOLDERS
def test_a_ledger_of_mariadb_is_migrated_and_read_and_goes_on(folder: Path, mariadb: MariaDbServer) -> None:
    name = f"nightshift_compat_{uuid.uuid4().hex[:12]}"
    url = mariadb.create_database(name)
    try:
        load_server(connector(url, mariadb.password), (folder / "ledger" / "mariadb.sql").read_bytes())
        with opened(url, mariadb.password) as ledger:
            assert json.loads(json.dumps(facts(ledger))) == recorded(folder)
            go_on(ledger)
    finally:
        mariadb.drop_database(name)


def test_what_is_recorded_has_the_columns_and_values_that_it_had(tmp_path: Path) -> None:
    was = rows_by_table((newest("ledger") / "sqlite.sql").read_bytes())
    now = rows_by_table(filled_sqlite(tmp_path))
    del was[VERSION]
    for table, column in PROSE:
        for row in was[table]:
            del row[column]
    assert same_json(now, was) == []
    assert all(was.values()), "each table has a row"


def test_the_same_is_read_in_a_ledger_that_is_written_now(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        fill(ledger)
        assert json.loads(json.dumps(facts(ledger))) == recorded(folders("ledger")[-1])
