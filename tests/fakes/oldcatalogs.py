"""Catalogs and tag databases as older versions of the stock tools wrote them, made out of present ones."""

from __future__ import annotations

import sqlite3

from tests.fakes.minirepo import MiniRepository

_CATALOG = (
    "md5path_1 INTEGER", "md5path_2 INTEGER", "parent_1 INTEGER", "parent_2 INTEGER", "hardlinks INTEGER", "hash BLOB",
    "size INTEGER", "mode INTEGER", "mtime INTEGER", "flags INTEGER", "name TEXT", "symlink TEXT", "uid INTEGER",
    "gid INTEGER",
)  # fmt: skip
_COUNTERS_SINCE = {2: ("xattr",), 3: ("external", "external_file_size"), 5: ("special",)}
_TAGS = "name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER, description TEXT"


def _open(database: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(database)
    return connection


def at_revision(database: bytes, revision: int, *, upgraded: bool = False) -> bytes:
    """A catalog as of schema 2.5 ``revision`` (1 to 7): without what came later.

    ``upgraded``: as a stock tool leaves one that it brought up to that revision: late columns stand at the end.
    """
    connection = _open(database)
    columns = list(_CATALOG)
    if upgraded:
        columns += ["xattr BLOB"] * (revision >= 2) + ["mtimens INTEGER"] * (revision >= 7)
    else:
        columns[9:9] = ["mtimens INTEGER"] * (revision >= 7)
        columns += ["xattr BLOB"] * (revision >= 2)
    selected = ", ".join(column.split()[0] for column in columns)
    connection.execute("DROP INDEX idx_catalog_parent")
    connection.execute("ALTER TABLE catalog RENAME TO present")
    connection.execute(
        f"CREATE TABLE catalog ({', '.join(columns)}, CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2))"
    )
    connection.execute("CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2)")
    connection.execute(f"INSERT INTO catalog ({selected}) SELECT {selected} FROM present ORDER BY rowid")
    connection.execute("CREATE TABLE pieces AS SELECT * FROM chunks")
    connection.execute("DROP TABLE chunks")
    connection.execute("DROP TABLE present")
    connection.execute(
        "CREATE TABLE chunks (md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER, hash BLOB,"
        " CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size),"
        " FOREIGN KEY (md5path_1, md5path_2) REFERENCES catalog (md5path_1, md5path_2))"
    )
    connection.execute("INSERT INTO chunks SELECT * FROM pieces")
    connection.execute("DROP TABLE pieces")
    if revision < 4:
        connection.execute("DROP TABLE bind_mountpoints")
    for since, counters in _COUNTERS_SINCE.items():
        for counter in counters if revision < since else ():
            connection.execute(
                "DELETE FROM statistics WHERE counter IN (?, ?)", (f"self_{counter}", f"subtree_{counter}")
            )
    connection.execute("UPDATE properties SET value = ? WHERE key = 'schema_revision'", (str(revision),))
    if connection.execute("SELECT 1 FROM properties WHERE key = 'root_prefix'").fetchone():
        # What stock tools write into the first revision of a nested catalog.
        connection.execute("INSERT OR REPLACE INTO properties VALUES ('previous_revision', ?)", ("0" * 40,))
    connection.execute("VACUUM")
    image = connection.serialize()
    connection.close()
    return image


def age(mini: MiniRepository, revision: int, *, upgraded: bool = False) -> MiniRepository:
    """Let all catalogs of a built repository be of an older revision."""
    for path, database in mini.databases.items():
        mini.databases[path] = at_revision(database, revision, upgraded=upgraded)
    return mini


def history_at_revision(database: bytes, revision: int) -> bytes:
    """A tag database as of schema 1.0 ``revision`` (0 to 3)."""
    connection = _open(database)
    columns = _TAGS + (", size INTEGER" if revision >= 1 else "") + (", branch TEXT" if revision >= 3 else "")
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    connection.execute("ALTER TABLE tags RENAME TO present")
    connection.execute(f"CREATE TABLE tags ({columns}, CONSTRAINT pk_tags PRIMARY KEY (name))")
    connection.execute(f"INSERT INTO tags ({names}) SELECT {names} FROM present")
    connection.execute("DROP TABLE present")
    if revision < 3:
        connection.execute("DROP TABLE branches")
    if revision < 2:
        connection.execute("DROP TABLE recycle_bin")
    connection.execute("UPDATE properties SET value = ? WHERE key = 'schema_revision'", (str(revision),))
    connection.execute("VACUUM")
    image = connection.serialize()
    connection.close()
    return image
