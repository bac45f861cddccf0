"""The connection type `cvmfs_gateway`: a client of the gateway that a connection describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from hooks.secrets import AirflowSecrets, in_form
from include.gateway.errors import GatewayError
from include.settings.errors import SettingsError

if TYPE_CHECKING:
    from include.gateway.client.client import GatewayClient
    from include.gateway.client.leases import Lease, RepositoryInfo

__all__ = ["CvmfsGatewayHook", "held_lease"]


class CvmfsGatewayHook(BaseHook):
    """Leases and commits of one CernVM-FS gateway. Login is the key's id, password its secret.

    Args:
        gateway_conn_id: A connection of type `cvmfs_gateway`.
    """

    conn_name_attr = "gateway_conn_id"
    default_conn_name = "cvmfs_gateway_default"
    conn_type = "cvmfs_gateway"
    hook_name = "CernVM-FS gateway"

    def __init__(self, gateway_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.gateway_conn_id = gateway_conn_id

    def get_conn(self) -> GatewayClient:
        """Open a client of the gateway; sends nothing yet.

        Returns:
            The client.

        Raises:
            MissingConnection: There is no connection of this id.
            BadConnection: It names no host.
        """
        from include.gateway.client.client import open_gateway

        return open_gateway(AirflowSecrets().get(self.gateway_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Ask the gateway whether it takes the key, and for its repositories; for the form's button, in the lab."""
        try:
            with self.get_conn() as client:
                served = client.repositories()
                client.check_key()
        except SettingsError as error:
            return False, in_form(error)
        except GatewayError as error:
            return False, str(error)
        return True, _served(served, client.key_id)


@contextmanager
def held_lease(lease: Mapping[str, Any]) -> Iterator[tuple[GatewayClient, Lease]]:
    """Use a lease that `CvmfsLeaseOperator` took, in a task after it: renewed for the length of the block.

    Args:
        lease: What `CvmfsLeaseOperator` returned.

    Yields:
        A client of the gateway, and the lease. Its `token` is masked in the task's log; hand it to programs by their
        environment or a file, never by their command line.

    Raises:
        LeaseLost: It has ended, or was taken with another key.
    """
    client, held = unsealed(lease)
    with client, client.taken_over(held) as renewed:
        yield client, renewed


def unsealed(lease: Mapping[str, Any]) -> tuple[GatewayClient, Lease]:
    """A client of its gateway, and the lease that `CvmfsLeaseOperator` took.

    Args:
        lease: What `CvmfsLeaseOperator` returned.

    Returns:
        The client and the lease, which is not renewed.

    Raises:
        GatewayError: `SEALED_LEASE_UNREADABLE`: its token was sealed with another key.
    """
    from include.gateway.client.leases import unseal

    connection = str(lease["gateway_conn_id"])
    held = unseal(lease, AirflowSecrets().get(connection).password or "", now=datetime.now(UTC))
    mask_secret(held.token)
    return CvmfsGatewayHook(connection).get_conn(), held


def _served(repositories: Sequence[RepositoryInfo], key_id: str) -> str:
    """The repositories by name, and those of them that list the key."""
    if not repositories:
        return f"takes key {key_id}, but serves no repository yet"
    ours = [repository.name for repository in repositories if key_id in repository.keys]
    others = [repository.name for repository in repositories if key_id not in repository.keys]
    text = f"takes key {key_id}; serves {', '.join(ours)}" if ours else f"takes key {key_id}, which no repository lists"
    return f"{text}; not for this key: {', '.join(others)}" if others else text
