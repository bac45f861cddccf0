"""New ledgers in files get their tables from one that was migrated before: the migrations take a third of a second."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect

from include.ledger import migrate
from include.ledger.engine import open_ledger, writing

_upgrade: Callable[[Connection], None] = migrate._upgrade


def from_a_template(patch: pytest.MonkeyPatch) -> None:
    """Let ``migrate`` do so. Ledgers that have tables, and those on a server, are migrated as ever."""
    patch.setattr(migrate, "_upgrade", _filled)


def _filled(connection: Connection) -> None:
    if connection.dialect.name != "sqlite" or inspect(connection).get_table_names():
        _upgrade(connection)
        return
    for statement in _statements():
        connection.exec_driver_sql(statement)


@cache
def _statements() -> tuple[str, ...]:
    """What a migrated ledger consists of."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        engine = open_ledger(f"sqlite:///{file}")
        writing(engine, _upgrade)
        engine.dispose()
        template = sqlite3.connect(file)
        statements = tuple(one for one in template.iterdump() if one not in ("BEGIN TRANSACTION;", "COMMIT;"))
        template.close()
    return statements
