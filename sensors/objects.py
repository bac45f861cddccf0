"""Wait for an object in a store; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hooks.object_store import require_one_store
from sensors.base import NotThere, WaitSensor

__all__ = ["NotThere", "ObjectSensor"]


class ObjectSensor(WaitSensor):
    """Succeeds once an object is in a store. Returns its URL.

    Args:
        key: The object's key in the store.
        store: The store's name in the site configuration; None: `store_conn_id` describes it.
        store_conn_id: A connection of type `object_store` whose extra names the bucket (`url`); by default
            `object_store_default`. Only one of the two may be given.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields: Sequence[str] = ("store", "key", "store_conn_id")
    check = "object"

    def __init__(
        self,
        *,
        key: str,
        store: str | None = None,
        store_conn_id: str | None = None,
        timeout: float = 6 * 3600.0,
        **kwargs: Any,
    ) -> None:
        require_one_store(store, store_conn_id)
        super().__init__(timeout=timeout, **kwargs)
        self.store = store
        self.key = key
        self.store_conn_id = store_conn_id

    def arguments(self) -> dict[str, Any]:
        value = {"store": self.store, "key": self.key}
        return value | ({"store_conn_id": self.store_conn_id} if self.store_conn_id else {})
