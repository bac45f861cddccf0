"""Wait for an object in a store; the waiting is done by the triggerer."""

from __future__ import annotations

from typing import Any

from sensors.base import NotThere, WaitSensor

__all__ = ["NotThere", "ObjectSensor"]


class ObjectSensor(WaitSensor):
    """Succeeds once `key` is in the store of that name in the site configuration. Returns its URL."""

    template_fields = ("store", "key")
    check = "object"

    def __init__(self, *, store: str, key: str, timeout: float = 6 * 3600.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.store = store
        self.key = key

    def arguments(self) -> dict[str, Any]:
        return {"store": self.store, "key": self.key}
