"""The connection type `object_store`: S3 credentials and endpoint, and stores opened with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow.sdk import BaseHook

from hooks.secrets import AirflowSecrets, in_form
from include.settings.urls import base_url

if TYPE_CHECKING:
    from include.storage.options import StoreOptions
    from include.storage.store import Store


class ObjectStoreHook(BaseHook):
    """Opens stores by URL with the access key of one connection. Login is the access key, password the secret one."""

    conn_name_attr = "store_conn_id"
    default_conn_name = "object_store_default"
    conn_type = "object_store"
    hook_name = "Object store (S3)"

    def __init__(self, store_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.store_conn_id = store_conn_id

    def get_conn(self, url: str = "") -> Store:
        """The store at `url` (`s3://bucket/prefix`); without one, the bucket that the connection's extra names.

        Raises MissingConnection, BadConnection or StoreError.
        """
        from include.settings.errors import BadConnection
        from include.settings.secrets import connection_variable
        from include.storage.open import open_store
        from include.storage.options import Credentials

        connection = AirflowSecrets().get(self.store_conn_id)
        where = url or str(connection.extra.get("url") or "")
        if not where:
            variable = connection_variable(self.store_conn_id)
            raise BadConnection(
                self.store_conn_id, variable, 'names no `url` in its extra, such as {"url": "s3://bucket"}'
            )
        credentials = None
        if connection.login:
            credentials = Credentials(connection.login, connection.password or "")
        return open_store(where, credentials=credentials, options=self.options())

    def options(self) -> StoreOptions:
        """How the connection says that its store is spoken to."""
        from include.storage.options import StoreOptions

        connection = AirflowSecrets().get(self.store_conn_id)
        addressing: Literal["path", "virtual"] = (
            "virtual" if connection.extra.get("addressing") == "virtual" else "path"
        )
        return StoreOptions(
            endpoint=base_url(connection) if connection.host else None,
            region=str(connection.extra.get("region") or "us-east-1"),
            addressing=addressing,
        )

    def test_connection(self) -> tuple[bool, str]:
        """Whether the bucket named in the extra can be listed; for the form's button, in the lab."""
        from include.settings.errors import SettingsError
        from include.storage.errors import StoreError

        try:
            store = self.get_conn()
            first = next(iter(store.list()), None)
        except SettingsError as error:
            return False, in_form(error)
        except StoreError as error:
            return False, str(error)
        return True, f"{store.url}: {'is empty' if first is None else 'can be listed'}"
