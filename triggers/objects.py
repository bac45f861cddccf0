"""Watch a store until an object is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.errors import is_retryable

if TYPE_CHECKING:
    from include.publishers.connect import Connections
    from include.settings.model import Site

POLL_S = 30.0
FIRST_PAUSE_S = 1.0


class StoreTrigger(BaseTrigger):
    """Looks again and again, in a thread and ever more seldom, until `_look` finds something or the deadline passes.

    An error that may pass by itself is logged and waited out; any other ends the waiting and is the event's reason.
    """

    def __init__(self, deadline: str | None, poll_s: float) -> None:
        super().__init__()
        self.deadline = deadline
        self.poll_s = poll_s

    def _store_name(self, site: Site) -> str:
        raise NotImplementedError

    def _connection_ids(self, site: Site) -> list[str | None]:
        """Of whatever is looked at."""
        return [site.store(self._store_name(site)).connection, site.ledger_connection]

    def _look(self, connections: Connections) -> str | None:
        """What was found, in words, or None. Runs in a thread."""
        raise NotImplementedError

    def _missing(self) -> str:
        """What is waited for yet."""
        return "nothing there yet"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: `found`, and the `reason` in words."""
        connections = await self._connections()
        deadline = datetime.fromisoformat(self.deadline) if self.deadline else None
        pause_s = FIRST_PAUSE_S
        while True:
            late = deadline is not None and datetime.now(UTC) >= deadline
            try:
                found = await asyncio.to_thread(self._look, connections)
            except Exception as error:  # noqa: BLE001 - the event carries it to the task, which fails with it
                if not is_retryable(error, otherwise=False):
                    yield TriggerEvent({"found": False, "reason": str(error)})
                    return
                self.log.warning("%s", error)
                found, reason = None, str(error)
            else:
                reason = found or self._missing()
            if found is not None or late:
                yield TriggerEvent({"found": found is not None, "reason": reason})
                return
            await asyncio.sleep(min(pause_s, self.poll_s))
            pause_s *= 2

    async def _connections(self) -> Connections:
        from hooks.secrets import KnownSecrets
        from include.publishers.connect import Connections
        from include.settings.load import load

        site = await asyncio.to_thread(load)
        return Connections(site, await KnownSecrets.of(self._connection_ids(site)))


class ObjectTrigger(StoreTrigger):
    """Fires when `key` is in the configured store `store`."""

    def __init__(self, store: str, key: str, deadline: str | None = None, poll_s: float = POLL_S) -> None:
        super().__init__(deadline, poll_s)
        self.store = store
        self.key = key

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"store": self.store, "key": self.key, "deadline": self.deadline, "poll_s": self.poll_s}
        return ("triggers.objects.ObjectTrigger", arguments)

    def _store_name(self, site: Site) -> str:  # noqa: ARG002
        return self.store

    def _look(self, connections: Connections) -> str | None:
        store = connections.store(self.store)
        meta = store.head(self.key)
        return None if meta is None else f"{store.url}/{self.key} has {meta.size} bytes"
