"""Wait for an object in a store; the waiting is done by the triggerer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from include.errors import NightshiftError
from sensors.base import NightshiftSensor
from triggers.objects import POLL_S, ObjectTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class NotThere(NightshiftError):
    """What was waited for did not come; a further try waits anew."""

    code = "awaited-object-missing"
    retryable = True


class ObjectSensor(NightshiftSensor):
    """Succeeds once `key` is in the store of that name in the site configuration.

    :param timeout: seconds to wait before the task fails, naming what is missing.
    """

    template_fields = ("store", "key")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        store: str,
        key: str,
        timeout: float = 6 * 3600.0,
        poke_interval: float = POLL_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, poke_interval=poke_interval, **kwargs)
        self.store = store
        self.key = key

    def execute(self, context: Context) -> str:  # noqa: ARG002
        store = self.connections().store(self.store)
        if store.exists(self.key):
            return f"{store.url}/{self.key}"
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        self.log.info("%s/%s is not there; waiting until %s", store.url, self.key, deadline.isoformat("T", "seconds"))
        return self.defer(
            trigger=ObjectTrigger(self.store, self.key, deadline.isoformat(), self.poke_interval),
            method_name="found",
            timeout=timedelta(seconds=self.timeout + 2 * self.poke_interval + 60),
        )

    def found(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002
        """The trigger's answer."""
        store = self.connections().store(self.store)
        where = f"{store.url}/{self.key}"
        if not event["found"]:
            raise NotThere(f"{where} did not come within {self.timeout:.0f} s: {event['reason']}. Check who writes it.")
        return where
