"""A client of the FTS server that a connection describes."""

from __future__ import annotations

from include.fts.client import FtsClient
from include.fts.transport import BearerToken, Credential, X509Files
from include.settings.secrets import ConnectionSecrets, base_url

PORT = 8446


def server_url(connection: ConnectionSecrets) -> str:
    """The server's address.

    Args:
        connection: A connection of type `fts`.

    Returns:
        ``https://host:port``, without a trailing slash.

    Raises:
        BadConnection: It names no host.
    """
    return base_url(connection, port=PORT, scheme="https")


def connected_credential(connection: ConnectionSecrets) -> Credential | None:
    """The bearer token (password), or certificate or proxy (extra), of a connection; None: it has neither."""
    if connection.password:
        return BearerToken(connection.password)
    certificate, key = (connection.extra.get(name) for name in ("certificate", "key"))
    return X509Files(str(certificate), str(key) if key else None) if certificate else None


def open_client(
    connection: ConnectionSecrets, credential: Credential | None, *, timeout_s: float = 60.0, retries: int = 2
) -> FtsClient:
    """A client; nothing is sent yet.

    Args:
        connection: Where the server is, and which authorities its certificate may have.
        credential: Who we are to it, as `connected_credential`, or a user's own.
        timeout_s: Seconds that a reply may take.
        retries: How often a call is repeated.

    Returns:
        The client, to be closed by the caller.

    Raises:
        BadConnection: The connection names no host, or its extra is malformed.
        FtsError: `TOKEN_UNPROTECTED`: a token would go over plain HTTP.
    """
    authorities = connection.extra.get("authorities")
    return FtsClient(
        server_url(connection),
        credential,
        authorities=str(authorities) if authorities else None,
        timeout_s=timeout_s,
        retries=retries,
    )


def connected_client(connection: ConnectionSecrets) -> FtsClient:
    """A client with the connection's own credential; as `open_client`.

    Args:
        connection: A connection of type `fts`.

    Returns:
        The client, to be closed by the caller.
    """
    return open_client(connection, connected_credential(connection))
