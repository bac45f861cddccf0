"""The connection type `fts`: a client of the FTS3 server that a connection describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from hooks.secrets import AirflowSecrets, in_form
from include.fts.errors import FtsError
from include.settings.errors import SettingsError

if TYPE_CHECKING:
    from include.fts.client import FtsClient


class FtsHook(BaseHook):
    """Address and credentials of one FTS server: a bearer token (password), or a certificate or proxy on the worker.

    Args:
        fts_conn_id: A connection of type `fts`.
    """

    conn_name_attr = "fts_conn_id"
    default_conn_name = "fts_default"
    conn_type = "fts"
    hook_name = "FTS (file transfer service)"

    def __init__(self, fts_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.fts_conn_id = fts_conn_id

    @property
    def url(self) -> str:
        """The server's address, without a trailing slash."""
        from include.fts.open import server_url

        return server_url(AirflowSecrets().get(self.fts_conn_id))

    def get_conn(self) -> FtsClient:
        """Open a client of the server; sends nothing yet.

        Returns:
            The client, to be closed by the caller.

        Raises:
            MissingConnection: There is no connection of this id.
            BadConnection: It names no host, or its extra is malformed.
            FtsError: `TOKEN_UNPROTECTED`: a token would go over plain HTTP.
        """
        from include.fts.open import connected_credential, open_client

        connection = AirflowSecrets().get(self.fts_conn_id)
        return open_client(connection, connected_credential(connection))

    def test_connection(self) -> tuple[bool, str]:
        """Ask the server for our identity (`GET /whoami`); for the form's button, in the lab."""
        try:
            with self.get_conn() as client:
                identity = client.whoami()
        except SettingsError as error:
            return False, in_form(error)
        except FtsError as error:
            return False, str(error)
        if identity.anonymous:
            return False, "answers as FTS, but takes us for anonymous; give a bearer token, or a certificate over https"
        return True, f"answers as FTS; we are {identity.user_dn} by {identity.method}"
