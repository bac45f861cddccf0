"""A client of the gateway that a connection describes."""

from __future__ import annotations

from include.gateway.client.client import GatewayClient
from include.settings.secrets import ConnectionSecrets
from include.settings.urls import base_url

PORT = 4929


def open_gateway(
    connection: ConnectionSecrets,
    *,
    key: ConnectionSecrets | None = None,
    port: int = PORT,
    timeout_s: float = 30.0,
    retries: int = 3,
) -> GatewayClient:
    """A client; nothing is sent yet.

    Args:
        connection: A connection of type `cvmfs_gateway`: where the gateway is, and which authorities its certificate
            may have.
        key: The connection with another key than its own, such as an administrator's.
        port: What a connection without a port means.
        timeout_s: Seconds that a reply may take.
        retries: How often a call is repeated.

    Returns:
        The client, to be closed by the caller.

    Raises:
        BadConnection: The connection names no host.
    """
    used, authorities = key or connection, connection.extra.get("authorities")
    return GatewayClient(
        base_url(connection, port=port),
        used.login or "",
        used.password or "",
        authorities=str(authorities) if authorities else None,
        timeout_s=timeout_s,
        retries=retries,
    )
