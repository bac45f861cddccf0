"""The ledger's tables: made as they are declared, by one of many processes."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, inspect, text, types

import include.benchmarks.verdict.record
import include.care.freezes.tables
import include.care.notify.tables
import include.care.provenance.tables
import include.care.replicas.tables
import include.care.watch.tables  # each declares its tables
import include.nightlies.records.tables
import include.settings.traits
import include.stageout.tables
from include.ledger.engine import reading, writing
from include.ledger.metadata import metadata
from include.ledger.migrate import VERSION_TABLE, _config, migrate, version
from include.nightlies.records import builds
from include.nightlies.records import publications as records
from include.nightlies.records.publications import new_row
from include.nightlies.records.tables import publications
from include.nightlies.rules.index import ParentBuild
from include.nightlies.rules.publication import Planned, PublicationKey
from include.nightlies.rules.states import Skip

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


def test_the_tables_are_those_that_are_declared(ledger):
    with reading(ledger) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_a_second_migration_changes_nothing(ledger):
    assert migrate(ledger) == version(ledger) == "0020"


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
    assert (done.returncode, done.stdout.split()) == (0, ["0020"] * 3), done.stderr
    assert version(empty) == "0020"


VERSIONS = tuple(f"{number:04}" for number in range(1, 20))


@pytest.mark.parametrize("begun", VERSIONS)
def test_what_an_earlier_version_kept_is_kept_to_the_last_character_and_microsecond(empty, begun):
    at_version(empty, begun)
    before = filled(empty)
    assert len(before) >= 6
    assert migrate(empty) == version(empty) == f"{int(VERSIONS[-1]) + 1:04}"
    with reading(empty) as connection:
        for table, (columns, row) in before.items():
            assert connection.execute(text(f"SELECT {columns} FROM {table}")).all() == [row], table
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
    # what the subjects read is whole, too
    (build,) = builds.builds_of(empty, NAME, date(2026, 11, 21))
    assert (build.complete, build.first_seen_at.microsecond) == (True, 123456)
    assert build.base == (None if begun < "0004" else ParentBuild(NAME, date(2026, 11, 21)))
    assert build.artifacts[0].artifact.project == NAME


OUTCOMES = [
    ("failed", "no tarball", "ArtifactMissing", "artifact-missing", None, None),
    ("failed", "no answer", "OperationalError", "OperationalError", None, None),
    ("skipped", "dry run: would publish 3 files", None, None, "dry_run", None),
    (
        "skipped",
        "blocked: it depends on A/x86, which failed: B/y, which x",
        None,
        None,
        "blocked",
        "A/x86",
    ),
    ("skipped", "undone at 2026-11-21 04:05 UTC by run: crashes", None, None, "undone", None),
    ("skipped", "superseded: build b1 lists it with another sum now", None, None, "superseded", None),
    ("skipped", "not approved: expired", None, None, "rejected", None),
    ("skipped", "in words of long ago", None, None, None, None),
    ("published", "dry run: not what it says", None, None, None, None),
]


def test_names_and_words_of_earlier_versions_become_codes_and_reasons(empty):
    at_version(empty, "0008")

    def begun(connection):
        for number, (state, reason, error_class, *_) in enumerate(OUTCOMES):
            key = PublicationKey("r.example.org", f"/{number}", "night/run")
            row = new_row(key, Planned(reason=reason), 1, datetime.now(UTC))
            values = row | {"state": state, "error_class": error_class}
            connection.execute(publications.insert().values(**values))

    writing(empty, begun)
    migrate(empty)
    found = records.publications_of_run(empty, "night/run")
    shown = [(one.state.value, one.reason, one.error_class, one.code, one.skip_reason, one.blocked_by) for one in found]
    assert shown == [(*one[:4], Skip(one[4]) if one[4] else None, one[5]) for one in OUTCOMES]


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


def at_version(engine, wanted):
    def work(connection):
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, wanted)

    writing(engine, work)
    assert version(engine) == wanted


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
