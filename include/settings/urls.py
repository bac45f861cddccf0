"""The URL that scheme, host and port of a connection make, for every service that speaks HTTP."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from include.settings.errors import BadConnection
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets, connection_variable
from include.storage.kinds import HTTP, S3, SCHEMES

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
