"""The connection type `cvmfs_gateway`: a client of the gateway that a connection describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from hooks.secrets import AirflowSecrets
from include.settings.urls import base_url

if TYPE_CHECKING:
    from include.gateway.client import GatewayClient


class CvmfsGatewayHook(BaseHook):
    """Leases and commits of one CernVM-FS gateway. Login is the key's id, password its secret."""

    conn_name_attr = "gateway_conn_id"
    default_conn_name = "cvmfs_gateway_default"
    conn_type = "cvmfs_gateway"
    hook_name = "CernVM-FS gateway"

    def __init__(self, gateway_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.gateway_conn_id = gateway_conn_id

    def get_conn(self) -> GatewayClient:
        """A client; sends nothing yet. Raises MissingConnection or BadConnection."""
        from include.gateway.client import GatewayClient

        connection = AirflowSecrets().get(self.gateway_conn_id)
        return GatewayClient(base_url(connection, port=4929), connection.login or "", connection.password or "")

    def test_connection(self) -> tuple[bool, str]:
        """Whether the gateway answers as one, and which repositories it serves; for the form's button, in the lab."""
        from include.gateway.errors import GatewayError
        from include.settings.errors import SettingsError

        try:
            served = sorted(self.get_conn().repositories())
        except (GatewayError, SettingsError) as error:
            return False, str(error)
        return True, f"serves {', '.join(served) or 'no repository yet'}"
