"""SQLite databases as text: a file itself names the version of SQLite that wrote it, and differs with it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

_COMMENT = re.compile(r"--[^\n]*")
_BLANKS = re.compile(r"\s+")


def dump(data: bytes) -> bytes:
    """The database of these bytes: its schema, then its rows in a fixed order."""
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(data)
        return _dumped(database)
    finally:
        database.close()


def dump_file(file: Path) -> bytes:
    """The same of a file, with what its write-ahead log holds."""
    database = sqlite3.connect(file)
    try:
        return _dumped(database)
    finally:
        database.close()


def loaded(sql: bytes) -> bytes:
    """The bytes of a database with the contents of a dump."""
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(sql.decode())
        return database.serialize()
    finally:
        database.close()


def load_into(file: Path, sql: bytes) -> Path:
    """A new file with the contents of a dump."""
    database = sqlite3.connect(file)
    try:
        database.executescript(sql.decode())
    finally:
        database.close()
    return file


def rows_by_table(sql: bytes) -> dict[str, list[dict[str, object]]]:
    """The rows of a dump by table, each by column."""
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    try:
        database.executescript(sql.decode())
        return {table: [dict(row) for row in _rows(database, table)] for table in _tables(database)}
    finally:
        database.close()


def _dumped(database: sqlite3.Connection) -> bytes:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    order = "ORDER BY type = 'trigger', type = 'index', name"
    schema = database.execute(
        f"SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' {order}"
    )
    lines = [f"PRAGMA user_version = {version};", *(f"{_BLANKS.sub(' ', _COMMENT.sub('', sql))};" for (sql,) in schema)]
    for table in _tables(database):
        if table == "sqlite_sequence":  # the rows above have made some of its own
            lines.append("DELETE FROM sqlite_sequence;")
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        quoted, names = (", ".join(form.format(column) for column in columns) for form in ('quote("{}")', '"{}"'))
        rows = database.execute(f'SELECT {quoted} FROM "{table}" ORDER BY 1, {min(2, len(columns))}')
        lines += [f'INSERT INTO "{table}" ({names}) VALUES ({", ".join(row)});' for row in rows]
    return "".join(f"{line}\n" for line in lines).encode()


def _tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_stat%'")
    return sorted(row[0] for row in found)


def _rows(database: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    return database.execute(f'SELECT * FROM "{table}" ORDER BY 1')
