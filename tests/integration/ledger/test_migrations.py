"""The ledger's tables: made as they are declared, by one of many processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

import include.interventions.tables
import include.nightlies.tables
import include.notify.tables
import include.provenance.tables
import include.settings.tables
import include.watch.tables  # each declares its tables
from include.ledger.engine import reading, writing
from include.ledger.metadata import metadata
from include.ledger.migrate import VERSION_TABLE, migrate, version

ROOT = Path(include.__path__[0]).parent

MIGRATE = """
import os, sys
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
engine = open_ledger(os.environ["URL"], password=os.environ.get("PASSWORD"))
print("ready", flush=True)
sys.stdin.readline()
print(migrate(engine))
"""


def test_the_tables_are_those_that_are_declared(ledger):
    with reading(ledger) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_a_second_migration_changes_nothing(ledger):
    assert migrate(ledger) == version(ledger) == "0007"


def test_a_migration_that_was_killed_half_way_is_finished(empty):
    migrate(empty)

    def undo(connection):
        connection.execute(text(f"DELETE FROM {VERSION_TABLE}"))
        connection.execute(text("DROP TABLE store_traits"))
        connection.execute(text("DROP TABLE publications"))

    writing(empty, undo)
    migrate(empty)
    with reading(empty) as connection:
        assert {"publications", "store_traits"} <= set(inspect(connection).get_table_names())


def test_many_processes_may_migrate_at_once(address, empty):
    url, password = address
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "URL": url}
    if password:
        environ["PASSWORD"] = password
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE],
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out.strip()) == (0, "0007"), err
    assert version(empty) == "0007"
