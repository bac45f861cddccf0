"""The ledger of a configuration, and the traits of each store that writers were seen to keep in a race."""

from __future__ import annotations

import configparser
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Boolean, Column, Connection, Engine, Table, delete, insert, select

from include.ledger.engine import Bind, open_ledger, reading, shown, writing
from include.ledger.errors import LedgerError
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, metadata
from include.ledger.migrate import migrate
from include.settings.model import SiteSettings, StoreSettings
from include.settings.secrets import Secrets, ledger_address
from include.storage.kinds import Traits

COPIES = "ledger-copies"
"""Folder below `paths.var` of copies of the ledger that were taken before a migration."""
MANY_HOSTS = ("Celery", "Kubernetes", "Edge")
"""Parts of the names of Airflow's executors that run tasks on more than one host."""


def open_site_ledger(
    settings: SiteSettings, secrets: Secrets, environ: Mapping[str, str] | None = None, *, look_only: bool = False
) -> Engine:
    """The ledger in force, migrated; raises the errors of `include.ledger`, MissingConnection or BadConnection.

    Before it is migrated it is copied to a folder below `paths.var`. `look_only`: as it is, for a look. A file cannot
    be the ledger of workers on more than one host: SQLite with such an executor raises LedgerError.
    """
    engine = open_ledger(ledger_address(settings, secrets, environ), look_only=look_only)
    executor = airflow_executor(os.environ if environ is None else environ)
    if engine.dialect.name == "sqlite" and any(part in executor for part in MANY_HOSTS):
        url = shown(engine.url)
        hint = "set `ledger` to mysql+pymysql://host:port/database"
        raise LedgerError(f"ledger {url}: SQLite does not serve the workers of {executor}. Hint: {hint}.", url=url)
    if not look_only:
        migrate(engine, copies=settings.paths.var / COPIES)
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


store_traits = Table(
    "store_traits",
    metadata,
    # of URL and endpoint, so that a store that is moved has to be tried again
    Column("store", hexadecimal(64), primary_key=True),
    Column("name", exact(128), nullable=False),
    Column("url", exact(2048), nullable=False),
    Column("put_if_absent", Boolean, nullable=False),
    Column("replace_if_unchanged", Boolean, nullable=False),
    Column("bulk_delete", Boolean, nullable=False),
    Column("anonymous_read", Boolean),
    Column("etag_quotes", Boolean, nullable=False),
    Column("probed_at", UtcTime, nullable=False),
    **TABLE_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission with its reason."""

    allowed: bool
    reason: str


def require_single_writer(traits: Traits | None, *, store: str, fqrn: str, writers: Sequence[str]) -> Permission:
    """Tell whether these gateways may all switch the manifest of `fqrn` in `store`."""
    if len(writers) <= 1:
        return Permission(True, f"{fqrn} has one manifest writer")
    named = ", ".join(writers)
    cure = f"Set `manifest_writers: 1` for {fqrn}, or move it to another store."
    if traits is None:
        why = f"store {store} has not been tried, so {named} may not both write the manifest of {fqrn}"
        return Permission(False, f"{why}. Run `nightshift settings check`.")
    if not traits.replace:
        why = f"store {store} ignores conditional replace, so {named} may not both write the manifest of {fqrn}"
        return Permission(False, f"{why}: one would undo the other's revision. {cure}")
    return Permission(True, f"store {store} keeps conditional replace")


def record_traits(bind: Bind, store: StoreSettings, traits: Traits, *, now: datetime) -> None:
    """Keep what `store` was seen to keep; a later trial replaces an earlier one."""
    values = {
        "store": _identity(store),
        "name": store.name,
        "url": store.url,
        "put_if_absent": traits.put_if_absent,
        "replace_if_unchanged": traits.replace,
        "bulk_delete": traits.bulk_delete,
        "anonymous_read": traits.anonymous_read,
        "etag_quotes": traits.etag_quotes,
        "probed_at": now,
    }

    def work(connection: Connection) -> None:
        connection.execute(delete(store_traits).where(store_traits.c.store == values["store"]))
        connection.execute(insert(store_traits).values(**values))

    writing(bind, work)


def recorded_traits(bind: Bind, store: StoreSettings) -> Traits | None:
    """Return the traits that `store` was last seen to keep; None if it was never tried at this URL and endpoint."""
    with reading(bind) as connection:
        query = select(store_traits).where(store_traits.c.store == _identity(store))
        row = connection.execute(query).mappings().first()
    if row is None:
        return None
    return Traits(
        put_if_absent=row["put_if_absent"],
        replace=row["replace_if_unchanged"],
        bulk_delete=row["bulk_delete"],
        anonymous_read=row["anonymous_read"],
        etag_quotes=row["etag_quotes"],
    )


def _identity(store: StoreSettings) -> str:
    return hashlib.sha256(f"{store.url}\0{store.endpoint or ''}".encode()).hexdigest()
