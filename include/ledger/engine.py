"""Opens the ledger (SQLite, or MySQL and MariaDB through PyMySQL) and runs transactions on it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from include.ledger.errors import LedgerError, LedgerUnavailable

Bind = Engine | Connection
"""An engine (the function is a transaction of its own) or a connection (it joins the caller's transaction)."""

BUSY_TIMEOUT_S = 60
ATTEMPTS = 8
IDLE_S = 1.0
"""A connection that was not used for so long is checked before it is used again."""
_RETURNED = "returned"
_RETRY_S = 0.01
_WRITE = "nightshift_write"
_DEADLOCK, _LOCK_WAIT = 1213, 1205
_AGREED = frozenset({"ssl_ca", "ssl_capath", "ssl_disabled", "unix_socket"})
"""Parameters of a URL, each of which says that TLS is verified, not needed, or not wanted."""

T = TypeVar("T")


class DatabaseAddress(Protocol):
    """Address of a ledger, its password apart from its URL."""

    @property
    def url(self) -> str: ...
    @property
    def login(self) -> str | None: ...
    @property
    def password(self) -> str | None: ...


def open_ledger(
    address: str | URL | DatabaseAddress,
    *,
    login: str | None = None,
    password: str | None = None,
    look_only: bool = False,
) -> Engine:
    """An engine on the ledger; connects to nothing yet. Tables are made by `migrate`. Raises LedgerError.

    `login` and `password` replace those of the address. `look_only`: for a look at a ledger that exists; a file is not
    changed.
    """
    url = _url(address)
    if login is not None:
        url = url.set(username=login)
    if password is not None:
        url = url.set(password=password)
    if url.drivername == "sqlite":
        return _open_sqlite(url, look_only=look_only)
    if url.drivername == "mysql+pymysql":
        return _open_mysql(url)
    raise _unusable(shown(url), f"{url.drivername} is not supported")


def shown(url: URL) -> str:
    """The URL for messages: its password hidden, its query (which may carry one) left out."""
    return url.set(query={}).render_as_string(hide_password=True)


def shown_address(address: str | URL | DatabaseAddress) -> str:
    """The URL of an address for messages. Raises LedgerError."""
    return shown(_url(address))


@contextmanager
def reading(bind: Bind) -> Iterator[Connection]:
    """A transaction that only reads, or the caller's own. Raises LedgerUnavailable."""
    if isinstance(bind, Connection):
        yield bind
        return
    with _translated(bind), bind.connect() as connection:
        yield connection


def writing(bind: Bind, work: Callable[[Connection], T]) -> T:
    """Return what `work` returns, done in one transaction that may be run again after a deadlock; raises
    LedgerUnavailable.

    On a connection it joins the caller's transaction, which then is the one to be repeated.
    """
    if isinstance(bind, Connection):
        return work(bind)
    with _translated(bind):
        for attempt in range(1, ATTEMPTS):
            try:
                return _once(bind, work)
            except OperationalError as error:
                # InnoDB has rolled the victim back: the same work may simply be done again
                if _code(error) not in {_DEADLOCK, _LOCK_WAIT}:
                    raise
                # at once, several victims would meet again and again
                time.sleep(_RETRY_S * random.random() * 2**attempt)  # noqa: S311  (no secret)
        return _once(bind, work)


def _once(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.connect().execution_options(**{_WRITE: True}) as connection, connection.begin():
        return work(connection)


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise LedgerUnavailable(shown(engine.url), _cause(error)) from error


def _cause(error: DBAPIError) -> str:
    text = str(error.orig.args[-1] if error.orig is not None and error.orig.args else error.orig)
    return text.rstrip(".")


def _code(error: DBAPIError) -> int | None:
    arguments = error.orig.args if error.orig is not None else ()
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def _url(address: str | URL | DatabaseAddress) -> URL:
    if isinstance(address, URL):
        return address
    text = address if isinstance(address, str) else address.url
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # not quoted and not chained: what cannot be parsed cannot be cleared of its password
        raise _unusable("(not shown)", "cannot be parsed") from None
    if isinstance(address, str):
        return url
    if address.login is not None:
        url = url.set(username=address.login)
    return url.set(password=address.password) if address.password is not None else url


def _open_sqlite(url: URL, *, look_only: bool) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise _unusable(shown(url), "a ledger in memory is lost with its process")
    try:
        if not look_only:
            Path(str(url.database)).absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(shown(url), f"its folder cannot be made: {error.strerror}") from None
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        # SQLAlchemy's events below begin transactions, not the driver, which would begin them too late
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
        # the mode of the journal is in the file, and would be a change of it
        cursor.execute("PRAGMA query_only = ON" if look_only else "PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # a reader that becomes a writer is refused at once if another one wrote in between: writers lock from the start
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _open_mysql(url: URL) -> Engine:
    from include.http_calls import is_loopback  # it imports a client, which no ledger in a file needs

    if not url.database:
        raise _unusable(shown(url), "names no database")
    if not (is_loopback(url.host or "localhost") or _AGREED & url.query.keys()):
        where = shown(url)
        raise LedgerError(
            f"ledger {where}: the connection is not encrypted."
            " Hint: add ?ssl_ca=/path/authorities.pem to its URL, or ?ssl_disabled=true where the network is trusted.",
            url=where,
        )
    engine = create_engine(
        url,
        connect_args={"charset": "utf8mb4", "connect_timeout": 10},
        isolation_level="READ COMMITTED",
        # each transaction ends with its block, so a further ROLLBACK would only be a round trip more
        pool_reset_on_return=None,
        pool_recycle=1800,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")

    @event.listens_for(engine, "checkin")
    def returned(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_RETURNED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def taken(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        # `pool_pre_ping` would ask before each transaction, also right after another one
        if time.monotonic() - record.info.get(_RETURNED, math.inf) > IDLE_S:
            try:
                connection.ping(reconnect=False)
            except Exception as error:
                raise DisconnectionError from error  # the pool opens another one

    return engine


def _unusable(url: str, what: str) -> LedgerError:
    return LedgerError(
        f"ledger {url}: {what}. Use sqlite:///path/ledger.db or mysql+pymysql://login@host:port/database.", url=url
    )
