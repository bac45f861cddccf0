"""The URL that scheme, host and port of a connection make, for every service that speaks HTTP."""

from __future__ import annotations

from include.settings.errors import BadConnection
from include.settings.secrets import Connection, connection_variable

_SCHEMES = ("http", "https")


def base_url(connection: Connection, *, port: int | None = None, scheme: str = "http") -> str:
    """`scheme://host:port`; `port` and `scheme` are what a connection without them means. Raises BadConnection.

    A host that is a URL already (`https://host:4929/path`) is taken as it is.
    """
    host = (connection.host or "").rstrip("/")
    if not host:
        raise BadConnection(connection.id, connection_variable(connection.id), "names no host")
    if "://" in host:
        return host
    given = (connection.schema or scheme).lower()
    if given not in _SCHEMES:
        raise BadConnection(
            connection.id, connection_variable(connection.id), f"has the scheme {given!r}, not http or https"
        )
    number = connection.port or port
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{given}://{bracketed}" + (f":{number}" if number else "")
