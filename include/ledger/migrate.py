"""Brings the ledger's tables to the version of this code; safe when several processes do it at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from include.ledger.engine import reading, shown, writing
from include.ledger.errors import LedgerError, LedgerUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "ledger_version"
LOCK_TIMEOUT_S = 60


def migrate(engine: Engine) -> str:
    """Make or change the tables as needed and return the version that they now have.

    Raises LedgerError when the ledger is newer than this code, LedgerUnavailable when it cannot be reached or locked.
    """
    head, known = _versions()
    if _behind(engine, head, known):
        with _locked(engine):
            if _behind(engine, head, known):  # another process may have done it while this one waited
                writing(engine, _upgrade)
    return head


def version(engine: Engine) -> str | None:
    """The version of the ledger's tables, or None when it has none yet."""
    with reading(engine) as connection:
        if not inspect(connection).has_table(VERSION_TABLE):
            return None
        # a column name of Alembic's own table
        found: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
        return found


@cache
def _versions() -> tuple[str, frozenset[str]]:
    """The newest version and all that this code knows: each is a module, so they are read once."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config())
    return str(scripts.get_current_head()), frozenset(script.revision for script in scripts.walk_revisions())


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
