"""The connection type `object_store`: S3 credentials and endpoint, and stores opened with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from hooks.secrets import AirflowSecrets, in_form
from include.settings.errors import SettingsError
from include.storage.errors import StoreError

if TYPE_CHECKING:
    from include.storage.kinds import StoreOptions
    from include.storage.store import Store

__all__ = ["ObjectStoreHook"]


class ObjectStoreHook(BaseHook):
    """Opens stores by URL with the access key of one connection. Login is the access key, password the secret one.

    Args:
        store_conn_id: A connection of type `object_store`.
    """

    conn_name_attr = "store_conn_id"
    default_conn_name = "object_store_default"  # as include.site.site.OBJECT_STORE
    conn_type = "object_store"
    hook_name = "Object store (S3)"

    def __init__(self, store_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.store_conn_id = store_conn_id

    def get_conn(self, url: str = "") -> Store:
        """Open a store; sends nothing yet.

        Args:
            url: `s3://bucket/prefix`; "": the bucket that the connection's extra names.

        Returns:
            The store.

        Raises:
            MissingConnection: There is no connection of this id.
            BadConnection: Its extra is malformed, or names no bucket.
            StoreError: The URL is malformed.
        """
        from include.site.site import connected_store

        return connected_store(AirflowSecrets(), self.store_conn_id, url)

    def options(self) -> StoreOptions:
        """Return the options of the store, by its connection."""
        from include.site.site import connected_options

        return connected_options(AirflowSecrets().get(self.store_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Try to list the bucket named in the extra; for the form's button, in the lab."""
        try:
            store = self.get_conn()
            first = next(iter(store.list()), None)
        except SettingsError as error:
            return False, in_form(error)
        except StoreError as error:
            return False, str(error)
        return True, f"{store.url}: {'is empty' if first is None else 'can be listed'}"


def require_one_store(store: str | None, store_conn_id: str | None) -> None:
    """Refuse a task that names its store twice.

    Args:
        store: A store's name in the site configuration, or None.
        store_conn_id: A connection of type `object_store`, or None.

    Raises:
        ValueError: Both are given.
    """
    if store is not None and store_conn_id is not None:
        raise ValueError(f"give `store` ({store!r}) or `store_conn_id` ({store_conn_id!r}), not both")
