"""Connections that the configuration names: their contents, without a secret in any repr, and their addresses."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from include.errors import NightshiftError
from include.settings.errors import BadConnection, MissingConnection
from include.settings.model import SiteSettings
from include.storage.kinds import HTTP, S3, SCHEMES

LEDGER_URL_VARIABLE = "NIGHTSHIFT_LEDGER_URL"


@dataclass(frozen=True, slots=True)
class ConnectionSecrets:
    """The contents of a connection; `repr` shows neither the password nor the values of `extra`."""

    id: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    conn_type: str = ""


class Secrets(Protocol):
    """Resolves a connection id; raises MissingConnection or BadConnection, which name it and the cure."""

    def get(self, connection_id: str) -> ConnectionSecrets: ...


class EnvSecrets:
    """Connections of the environment: `AIRFLOW_CONN_<ID>`, as JSON or as a URI, as Airflow reads them."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def __repr__(self) -> str:
        return "EnvSecrets()"

    def get(self, connection_id: str) -> ConnectionSecrets:
        variable = connection_variable(connection_id)
        text = self._environ.get(variable, "").strip()
        if not text:
            raise MissingConnection(connection_id, variable, self._similar(variable))
        try:
            return _from_json(connection_id, text) if text.startswith("{") else _from_uri(connection_id, text)
        except ValueError as error:
            # not chained: a parser's message may quote the secret
            raise BadConnection(connection_id, variable, _reason(error)) from None

    def _similar(self, variable: str) -> str | None:
        prefix = connection_variable("")
        names = [name.removeprefix(prefix) for name in self._environ if name.startswith(prefix)]
        close = difflib.get_close_matches(variable.removeprefix(prefix), names, n=1, cutoff=0.8)
        return close[0].lower() if close else None


def connection_variable(connection_id: str) -> str:
    """The environment variable that defines a connection."""
    return f"AIRFLOW_CONN_{connection_id.upper()}"


@dataclass(frozen=True, slots=True)
class LedgerAddress:
    """The address of the ledger; the password, if there is one, is not in `url` and not in `repr`."""

    url: str = field(repr=False)
    login: str | None = None
    password: str | None = field(default=None, repr=False)


def ledger_address(settings: SiteSettings, secrets: Secrets, environ: Mapping[str, str] | None = None) -> LedgerAddress:
    """The ledger in force: `NIGHTSHIFT_LEDGER_URL`, else the file's `ledger` with its connection's login."""
    given = (os.environ if environ is None else environ).get(LEDGER_URL_VARIABLE)
    if given:
        return LedgerAddress(given)
    if settings.ledger_connection is None or settings.ledger.startswith("sqlite"):
        return LedgerAddress(settings.ledger)
    connection = secrets.get(settings.ledger_connection)
    return LedgerAddress(settings.ledger, connection.login, connection.password)


class _Malformed(NightshiftError, ValueError):
    """A fault described in words of ours, which quote nothing of the value."""

    code = "connection-malformed"


def _reason(error: ValueError) -> str:
    return str(error) if isinstance(error, _Malformed) else "cannot be read"


def _from_json(connection_id: str, text: str) -> ConnectionSecrets:
    try:
        data = json.loads(text)
    except ValueError:
        raise _Malformed("looks like JSON but is not") from None
    extra = data.get("extra") or {}
    if isinstance(extra, str):
        extra = json.loads(extra)
    if not isinstance(extra, dict):
        raise _Malformed("has an `extra` that is not an object")
    port = data.get("port")
    if isinstance(port, bool) or not (
        port is None or isinstance(port, int) or (isinstance(port, str) and port.isdigit())
    ):
        raise _Malformed("has a port that is not a number")
    texts = {key: data.get(key) for key in ("host", "login", "password", "schema", "conn_type")}
    for key, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise _Malformed(f"has a `{key}` that is not text")
    return ConnectionSecrets(
        id=connection_id,
        host=texts["host"],
        port=int(port) if port is not None else None,
        login=texts["login"],
        password=texts["password"],
        schema=texts["schema"],
        extra=extra,
        conn_type=texts["conn_type"] or "",
    )


def _from_uri(connection_id: str, text: str) -> ConnectionSecrets:
    parts = urlsplit(text)
    if not parts.scheme:
        raise _Malformed("is neither JSON nor a URI")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    packed = query.pop("__extra__", None)
    extra: Any = json.loads(packed) if packed else query
    if not isinstance(extra, dict):
        raise _Malformed("has an `__extra__` that is not an object")
    login, password = (unquote(part) if part is not None else None for part in (parts.username, parts.password))
    hostname = parts.netloc.rpartition("@")[2]
    # urlsplit lowers the host; a percent-encoded URL as host must keep its case
    host = (
        hostname
        if hostname.startswith("[")
        else hostname.rpartition(":")[0]
        if parts.port is not None
        else hostname.rstrip(":")
    )
    return ConnectionSecrets(
        id=connection_id,
        host=unquote(host.strip("[]")) or None,
        port=parts.port,
        login=login,
        password=password,
        schema=unquote(parts.path[1:]) or None,
        extra=extra,
        conn_type=parts.scheme.replace("-", "_"),
    )


_SCHEMES = ("http", "https")


def base_url(connection: ConnectionSecrets, *, port: int | None = None, scheme: str = "http") -> str:
    """`scheme://host:port`; `port` and `scheme` are what a connection without them means. Raises BadConnection.

    A host that is a URL already (`https://host:4929/path`) is taken as it is; a port of the connection is added.
    """
    host = (connection.host or "").rstrip("/")
    if not host:
        raise _bad(connection, "names no host")
    if "://" in host:
        return _with_port(connection, host)
    given = (connection.schema or scheme).lower()
    if given not in _SCHEMES:
        raise _bad(connection, f"has the scheme {given!r}, not http or https")
    number = connection.port or port
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{given}://{bracketed}" + (f":{number}" if number else "")


def browser_url(settings: SiteSettings, url: str) -> str | None:
    """Return a browser's address of a store's object: an http(s) URL as it is, `s3://` at its endpoint; else None."""
    scheme, _, place = url.partition("://")
    kind = SCHEMES.get(scheme.lower())
    if kind is HTTP:
        return url
    for store in settings.stores.values():
        if kind is S3 and url.startswith(f"{store.url}/") and store.endpoint:
            return f"{store.endpoint}/{place}"
    return None


def _with_port(connection: ConnectionSecrets, url: str) -> str:
    try:
        parts = urlsplit(url)
        own = parts.port
    except ValueError:
        raise _bad(connection, f"has the host {url!r}, which is not a URL") from None
    if connection.port is None or own == connection.port:
        return url
    if own is not None:
        raise _bad(connection, f"names two ports: {own} in its host and {connection.port}; remove one of them")
    return urlunsplit(parts._replace(netloc=f"{parts.netloc}:{connection.port}"))


def _bad(connection: ConnectionSecrets, what: str) -> BadConnection:
    return BadConnection(connection.id, connection_variable(connection.id), what)
