"""Brings the ledger's tables to the version of this code; safe when several processes do it at once.

A ledger that has tables is copied first: going back is to put the copy in its place (docs/backup.md).
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from include.ledger.copies import copy_ledger
from include.ledger.engine import reading, shown, writing
from include.ledger.errors import LedgerError, LedgerUnavailable

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "ledger_version"
LOCK_TIMEOUT_S = 60
COPIES_KEPT = 3
FILE_MODE = 0o640

log = logging.getLogger(__name__)


def migrate(engine: Engine, *, copies: Path | None = None) -> str:
    """Make or change the tables as needed and return the version that they now have.

    `copies`: the folder for a copy of a ledger of an earlier version; None: no copy is taken. Raises LedgerError when
    the ledger is newer than this code, or when it cannot be copied; LedgerUnavailable when it cannot be reached or
    locked.
    """
    head, known = _versions()
    if _behind(engine, head, known):
        with _locked(engine):
            if _behind(engine, head, known):  # another process may have done it while this one waited
                if copies is not None and version(engine) is not None:
                    _keep_copy(engine, copies, head)
                writing(engine, _upgrade)
                _protect(engine)
    return head


@dataclass(frozen=True, slots=True)
class Migration:
    """Migration of a ledger that is behind.

    Attributes:
        revision: Version of the tables after it.
        subject: What it changes.
        table: Table whose rows it changes, its `TABLE`; None: it makes tables only.
        rows: Number of these rows, on a server about; None: there are none yet.
    """

    revision: str
    subject: str
    table: str | None = None
    rows: int | None = None


def pending(engine: Engine) -> Sequence[Migration]:
    """Return the migrations that a ledger needs, in order. Raises LedgerError where it is newer than this code."""
    head = _versions()[0]
    if not _behind(engine, *_versions()):
        return ()
    scripts = [*_scripts().iterate_revisions(head, version(engine) or "base")]
    migrations = []
    for script in reversed(scripts):
        table = getattr(script.module, "TABLE", None)
        subject = script.doc.rstrip(".")
        migrations.append(Migration(script.revision, subject, table, _rows(engine, table) if table else None))
    return migrations


def _rows(engine: Engine, table: str) -> int | None:
    with reading(engine) as connection:
        if not inspect(connection).has_table(table):
            return None
        if engine.dialect.name == "sqlite":
            return int(connection.scalar(text(f"SELECT COUNT(*) FROM {table}")) or 0)  # noqa: S608 - a name of our own
        # a server would read them all to count them
        estimate = (
            "SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :t"
        )
        return int(connection.scalar(text(estimate), {"t": table}) or 0)


def _protect(engine: Engine) -> None:
    """Take the ledger's file from others: it names users and their files."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        file = Path(engine.url.database)
        with suppress(PermissionError):  # of another account, who has made it
            file.chmod(stat.S_IMODE(file.stat().st_mode) & FILE_MODE)


def _keep_copy(engine: Engine, folder: Path, head: str) -> None:
    """Copy the ledger as it is, and remove all copies but the newest."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ending = "db" if engine.dialect.name == "sqlite" else "sql"
    file = folder / f"before-{head}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.{ending}"
    copy_ledger(engine, file)
    log.warning(
        "ledger %s is migrated from %s to %s; it was copied to %s", shown(engine.url), version(engine), head, file
    )
    older = sorted(folder.glob("before-*"), key=lambda copy: copy.stat().st_mtime_ns)[:-COPIES_KEPT]
    for copy in older:
        copy.unlink(missing_ok=True)


def version(engine: Engine) -> str | None:
    """The version of the ledger's tables, or None when it has none yet."""
    with reading(engine) as connection:
        if not inspect(connection).has_table(VERSION_TABLE):
            return None
        # a column name of Alembic's own table
        found: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
        return found


def versions() -> frozenset[str]:
    """Return the versions of the tables that this code can read."""
    return _versions()[1]


@cache
def _versions() -> tuple[str, frozenset[str]]:
    """The newest version and all that this code knows, by the names of their files.

    Alembic and the migrations are imported for a ledger that is behind: that takes longer than many a command.
    """
    numbers = sorted(file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("v*_*.py"))
    return numbers[-1], frozenset(numbers)


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def _behind(engine: Engine, head: str, known: frozenset[str]) -> bool:
    found = version(engine)
    if found is not None and found not in known:
        url = shown(engine.url)
        if found.isdecimal():
            raise LedgerError(
                f"ledger {url}: its tables have revision {found}, of a commit before Nightshift 0.2.0, and cannot be "
                "upgraded. Use that commit for it, or name a new ledger.", url=url
            )  # fmt: skip
        what = f"ledger {url}: its tables have revision {found}, this code knows up to {head}. "
        raise LedgerError(f"{what}Install the newer Nightshift that made them, or name another ledger.", url=url)
    return found != head


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _locked(engine: Engine) -> Iterator[None]:
    if engine.dialect.name == "sqlite":
        with _file_locked(Path(f"{engine.url.database}.migrate.lock")):
            yield
    else:
        with _server_locked(engine):
            yield


@contextmanager
def _file_locked(path: Path) -> Iterator[None]:
    # the file stays: removing it would let two processes lock two files of the same name
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _server_locked(engine: Engine) -> Iterator[None]:
    name = f"nightshift.migrate.{engine.url.database}"[:64]
    with reading(engine) as connection:
        got = connection.scalar(text("SELECT GET_LOCK(:name, :seconds)"), {"name": name, "seconds": LOCK_TIMEOUT_S})
        if got != 1:
            raise LedgerUnavailable(
                shown(engine.url), f"another process has been changing the tables for over {LOCK_TIMEOUT_S} s"
            )
        try:
            yield
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name})
