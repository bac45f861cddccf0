"""The ledger's tables: made as they are declared, by one of many processes."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, inspect, text, types

import include.aliencache.records
import include.benchmarks.judge.judge
import include.federation.records
import include.ledger.acts
import include.monitoring.render  # each declares its tables
import include.nightlies.records.tables
import include.notify
import include.provenance.interventions
import include.provenance.records
import include.replicas.states
import include.settings.traits
import include.stageout.tables
from include.ledger.engine import open_ledger, reading, writing
from include.ledger.errors import LedgerError
from include.ledger.metadata import metadata
from include.ledger.migrate import MIGRATIONS, VERSION_TABLE, migrate, version, versions
from include.nightlies.records import builds
from include.nightlies.rules.index import ParentBuild

ROOT = Path(include.__path__[0]).parent

MIGRATE = """
import os, sys
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate

ready, go = os.pipe()
children = []
for _ in range(3):  # each a process of its own; the imports are done once
    if (child := os.fork()) == 0:
        os.close(go)
        os.read(ready, 1)  # ends when the parent lets go of the other side: all begin at once
        done = migrate(open_ledger(os.environ["URL"], password=os.environ.get("PASSWORD")))
        os.write(1, f"{done} ".encode())  # in one piece: the three share the pipe
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""

OPEN = """
import sys
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate

migrate(open_ledger(sys.argv[1]))
print("alembic" in sys.modules, "uvicorn" in sys.modules)
"""


def test_the_tables_are_those_that_are_declared(ledger):
    with reading(ledger) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_a_second_migration_changes_nothing(ledger):
    assert migrate(ledger) == version(ledger) == "v0007"


def test_the_files_of_migrations_are_named_by_their_versions():
    scripts = ScriptDirectory(MIGRATIONS)
    assert versions() == {script.revision for script in scripts.walk_revisions()}
    assert max(versions()) == scripts.get_current_head()


def test_a_ledger_of_this_version_is_opened_without_alembic_and_without_a_server(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    for imported in (True, False):
        done = subprocess.run([sys.executable, "-c", OPEN, url], capture_output=True, text=True, cwd=ROOT)
        assert done.stdout.split() == [str(imported), "False"], done.stderr


def test_the_file_of_a_ledger_is_not_for_others_also_of_one_that_exists(tmp_path):
    file = tmp_path / "ledger.db"
    file.touch(mode=0o666)
    file.chmod(0o666)
    ledger = open_ledger(f"sqlite:///{file}")
    migrate(ledger)
    ledger.dispose()
    assert file.stat().st_mode & 0o777 == 0o640


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
    done = subprocess.run([sys.executable, "-c", MIGRATE], env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["v0007"] * 3), done.stderr
    assert version(empty) == "v0007"


@pytest.mark.parametrize("revision", ["0001", "0020"])
def test_a_ledger_of_a_commit_before_0_2_0_is_refused_unchanged(empty, revision):
    def work(connection):
        connection.execute(text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES ('{revision}')"))

    writing(empty, work)
    with pytest.raises(LedgerError, match=f"revision {revision}.*before Nightshift 0.2.0.*new ledger"):
        migrate(empty)
    with reading(empty) as connection:
        assert inspect(connection).get_table_names() == [VERSION_TABLE]
    assert version(empty) == revision


def test_a_ledger_keeps_all_it_was_given_to_the_last_character_and_microsecond(ledger):
    written = filled(ledger)
    assert len(written) == len(metadata.tables)
    assert migrate(ledger) == version(ledger)
    with reading(ledger) as connection:
        for table, (columns, row) in written.items():
            assert connection.execute(text(f"SELECT {columns} FROM {table}")).all() == [row], table
    (build,) = builds.builds_of(ledger, NAME, date(2026, 11, 21))
    assert (build.complete, build.first_seen_at.microsecond) == (True, 123456)
    assert build.base == ParentBuild(NAME, date(2026, 11, 21))
    assert build.artifacts[0].artifact.project == NAME


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))], indirect=True)
def test_every_column_of_a_server_is_of_the_kind_that_its_contents_need(ledger):
    """Names by every byte in four-byte Unicode, digests in ASCII, instants with microseconds, rows that can grow.

    SQLite keeps whatever it is given.
    """
    with reading(ledger) as connection:
        columns = connection.execute(
            text(
                "SELECT table_name, column_name, data_type, collation_name, datetime_precision, column_type"
                " FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name <> :version"
            ),
            {"version": VERSION_TABLE},
        ).all()
        tables = connection.execute(
            text(
                "SELECT engine, row_format, table_collation FROM information_schema.tables"
                " WHERE table_schema = DATABASE() AND table_name <> :version"
            ),
            {"version": VERSION_TABLE},
        ).all()
    assert len(tables) == len(metadata.tables)
    assert {tuple(one) for one in tables} == {("InnoDB", "Dynamic", "utf8mb4_bin")}
    by_kind: dict[str, set[object]] = {}
    for _, _, kind, collation, precision, _ in columns:
        by_kind.setdefault(kind, set()).add(precision if kind == "datetime" else collation)
    assert by_kind["datetime"] == {6}
    assert by_kind["varchar"] == by_kind["varchar"] & {"utf8mb4_bin", "ascii_bin"}
    assert by_kind["longtext"] == {"utf8mb4_bin"}
    ids = [kind for _, name, kind, *_ in columns if name == "id"]
    assert set(ids) == {"bigint"}


NAME = "😀" * 128


def filled(engine):
    """A row in every table, each text as long as it may be; what was written, by table."""
    there, written = MetaData(), {}
    there.reflect(engine)

    def work(connection):
        quote = engine.dialect.identifier_preparer.quote
        for table in there.sorted_tables:
            if table.name == VERSION_TABLE:
                continue
            values = {column.name: value_of(column) for column in table.columns}
            names = ", ".join(quote(name) for name in values)
            marks = ", ".join(f":{name}" for name in values)
            connection.execute(text(f"INSERT INTO {table.name} ({names}) VALUES ({marks})"), values)
            written[table.name] = (names, connection.execute(text(f"SELECT {names} FROM {table.name}")).one())

    writing(engine, work)
    return written


def value_of(column):
    kind, ascii_only = column.type, "ascii" in (getattr(column.type, "collation", "") or "")
    if isinstance(kind, types.JSON):
        return "[]"
    if isinstance(kind, types.DateTime):
        return "2026-11-21 04:05:06.123456"
    if isinstance(kind, types.Date):
        return "2026-11-21"
    if isinstance(kind, types.String) and kind.length is None:
        return "[]"
    if isinstance(kind, types.String):
        return ("f" if ascii_only else "😀") * kind.length
    return 1
