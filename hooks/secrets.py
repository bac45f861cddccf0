"""Airflow's connections as the library's `Secrets`: environment, secrets backend or UI, as Airflow asks them."""

from __future__ import annotations

import asyncio
import json

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from include.settings.errors import BadConnection, MissingConnection, SettingsError
from include.settings.secrets import ConnectionSecrets, connection_variable


class AirflowSecrets:
    """Resolves a connection id through Airflow, in tasks. Implements `include.settings.secrets.Secrets`."""

    def get(self, connection_id: str) -> ConnectionSecrets:
        """Ask Airflow for a connection.

        Args:
            connection_id: Its id.

        Returns:
            The connection in the library's form.

        Raises:
            MissingConnection: There is none of this id.
            BadConnection: It is malformed. Neither quotes a secret.
        """
        try:
            connection = BaseHook.get_connection(connection_id)
        except AirflowNotFoundException:
            raise MissingConnection(connection_id, connection_variable(connection_id)) from None
        return from_airflow(connection_id, connection)

    def __repr__(self) -> str:
        return "AirflowSecrets()"


class KnownSecrets:
    """Connections for the threads of a trigger: its event loop asks Airflow for each, once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known: dict[str, ConnectionSecrets] = {}

    def get(self, connection_id: str) -> ConnectionSecrets:
        """Ask Airflow for a connection, once. Not to be called in the event loop itself.

        Args:
            connection_id: Its id.

        Returns:
            The connection in the library's form.

        Raises:
            MissingConnection: There is none of this id.
            BadConnection: It is malformed.
        """
        if connection_id not in self._known:
            asked = asyncio.run_coroutine_threadsafe(_ask(connection_id), self._loop)
            self._known[connection_id] = asked.result()
        return self._known[connection_id]

    def __repr__(self) -> str:
        return f"KnownSecrets({', '.join(sorted(self._known))})"


async def _ask(connection_id: str) -> ConnectionSecrets:
    try:
        return from_airflow(connection_id, await BaseHook.aget_connection(connection_id))
    except AirflowNotFoundException:
        raise MissingConnection(connection_id, connection_variable(connection_id)) from None


def in_form(error: SettingsError) -> str:
    """Return the fault of a connection in a form. Airflow tries it under an id of its own, which is not known."""
    return f"this connection {error.what}" if isinstance(error, BadConnection) else str(error)


def from_airflow(connection_id: str, connection: Connection) -> ConnectionSecrets:
    """The library's form of one of Airflow's connections.

    Args:
        connection_id: The id by which it was asked for.
        connection: Airflow's connection.

    Returns:
        The connection in the library's form.

    Raises:
        BadConnection: Its `extra` is no JSON object.
    """
    variable = connection_variable(connection_id)
    try:
        extra = json.loads(connection.extra) if connection.extra else {}
    except ValueError:
        raise BadConnection(connection_id, variable, "has an `extra` that is no JSON") from None
    if not isinstance(extra, dict):
        raise BadConnection(connection_id, variable, "has an `extra` that is not an object")
    return ConnectionSecrets(
        id=connection_id,
        host=connection.host,
        port=connection.port,
        login=connection.login,
        password=connection.password,
        schema=connection.schema,
        extra=extra,
        conn_type=connection.conn_type or "",
    )
