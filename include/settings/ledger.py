"""Opens the ledger of a configuration, its tables up to date."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Engine

from include.ledger.engine import open_ledger, shown
from include.ledger.errors import LedgerError
from include.ledger.migrate import migrate
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets, ledger_address

MANY_HOSTS = ("Celery", "Kubernetes", "Edge")
"""Parts of the names of Airflow's executors that run tasks on more than one host."""


def open_site_ledger(settings: SiteSettings, secrets: Secrets, environ: Mapping[str, str] | None = None) -> Engine:
    """The ledger in force, migrated; raises the errors of `include.ledger`, MissingConnection or BadConnection.

    A file cannot be the ledger of workers on more than one host: SQLite with such an executor raises LedgerError.
    """
    engine = open_ledger(ledger_address(settings, secrets, environ))
    executor = airflow_executor(os.environ if environ is None else environ)
    if engine.dialect.name == "sqlite" and any(part in executor for part in MANY_HOSTS):
        url = shown(engine.url)
        hint = "set `ledger` to mysql+pymysql://host:port/database"
        raise LedgerError(f"ledger {url}: SQLite does not serve the workers of {executor}. Hint: {hint}.", url=url)
    migrate(engine)
    return engine


def airflow_executor(environ: Mapping[str, str]) -> str:
    """Airflow's executor as the environment or `airflow.cfg` names it; empty where neither does."""
    given = environ.get("AIRFLOW__CORE__EXECUTOR")
    if given:
        return given
    home = environ.get("AIRFLOW_HOME")
    file = environ.get("AIRFLOW_CONFIG") or (str(Path(home) / "airflow.cfg") if home else None)
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read([file] if file else [], encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return ""
    return parser.get("core", "executor", fallback="")
