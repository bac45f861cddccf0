"""Watches the indices of a slot for the first artifact of a date, as an event of an asset. It only watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from triggers.configured import configured


class FirstArtifactTrigger(BaseEventTrigger):
    """One event with the `date` for each build date whose index lists something; it never ends.

    After a restart of the triggerer it reports again what it sees: a night that has begun is begun once.

    Args:
        slot: The slot's name in the site configuration.
        poll_s: Seconds between two checks of its indices.
    """

    def __init__(self, slot: str, poll_s: float) -> None:
        super().__init__()
        self.slot = slot
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("triggers.begin.FirstArtifactTrigger", {"slot": self.slot, "poll_s": self.poll_s})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Errors are logged and retried; the trigger never stops, otherwise a missed night would go unnoticed."""
        from include.nightlies.steps.build_status import FirstArtifacts

        looks, reported = None, ""
        while True:
            try:
                looks = looks or FirstArtifacts(configured(self.slot), self.slot)
                found = await asyncio.to_thread(looks.look, datetime.now(UTC))
            except Exception as error:  # noqa: BLE001 - a store, a configuration that is just edited: checked again
                found = []
                if str(error) != reported:
                    self.log.warning("%s", error)
                    reported = str(error)
            else:
                reported = ""
            for day in found:
                yield TriggerEvent({"date": day.isoformat()})
            await asyncio.sleep(self.poll_s)
