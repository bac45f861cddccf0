"""Watches a gateway's list of leases until a path is free. It only watches: no key, no token, no lease of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

POLL_S = 2.0


class LeaseFreeTrigger(BaseTrigger):
    """Fires when no lease overlaps `path` any more, or at the deadline with the name of the holder.

    :param connection_id: the gateway's connection; only its address is used.
    :param path: absolute, or empty for the whole repository.
    :param deadline: ISO 8601 with zone, so that a restart of the triggerer does not begin the waiting anew.
    :param since: when the waiting began, handed back in the event to the task that comes back.
    """

    def __init__(
        self,
        connection_id: str,
        repository: str,
        path: str,
        deadline: str | None = None,
        poll_s: float = POLL_S,
        since: str | None = None,
    ) -> None:
        super().__init__()
        self.connection_id = connection_id
        self.repository = repository
        self.path = path
        self.deadline = deadline
        self.poll_s = poll_s
        self.since = since

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "triggers.lease.LeaseFreeTrigger",
            {
                "connection_id": self.connection_id,
                "repository": self.repository,
                "path": self.path,
                "deadline": self.deadline,
                "poll_s": self.poll_s,
                "since": self.since,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: `free`, the `holder` where there is one, and the `reason` in words."""
        from hooks.secrets import KnownSecrets
        from include.gateway.client.client import GatewayClient
        from include.gateway.errors import GatewayError
        from include.settings.urls import base_url

        place = f"{self.repository}{self.path or '/'}"
        secrets = await KnownSecrets.of([self.connection_id])
        deadline = datetime.fromisoformat(self.deadline) if self.deadline else None
        # listing leases needs no key, so the client is given none
        with GatewayClient(base_url(secrets.get(self.connection_id), port=4929), "", "", retries=0) as client:
            while True:
                late = deadline is not None and datetime.now(UTC) >= deadline
                try:
                    holder = await asyncio.to_thread(client.holder, self.repository, self.path)
                except GatewayError as error:
                    if late or not error.retryable:
                        yield self._event(free=False, reason=str(error))
                        return
                    self.log.warning("%s: %s", place, error)
                else:
                    if holder is None:
                        yield self._event(free=True, reason=f"{place} is free")
                        return
                    if late:
                        reason = f"{place} is still held by {holder.hostname!r} with key {holder.key_id}"
                        yield self._event(free=False, reason=reason, holder=holder.hostname)
                        return
                await asyncio.sleep(self.poll_s)

    def _event(self, *, free: bool, reason: str, holder: str | None = None) -> TriggerEvent:
        return TriggerEvent({"free": free, "holder": holder, "reason": reason, "since": self.since})
