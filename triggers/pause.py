"""Waits for a while, where nothing tells when something happens; the task that comes back looks itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent


class PauseTrigger(BaseTrigger):
    """Fires after ``pause_s`` seconds, at the deadline if that is earlier.

    :param deadline: ISO 8601 with zone.
    :param since: when the waiting began, handed back in the event to the task that comes back.
    :param number: which pause of the waiting this is, handed back likewise.
    """

    def __init__(self, pause_s: float, deadline: str | None = None, since: str | None = None, number: int = 0) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.deadline = deadline
        self.since = since
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "triggers.pause.PauseTrigger",
            {"pause_s": self.pause_s, "deadline": self.deadline, "since": self.since, "number": self.number},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: the `reason` in words, `since` and `number`."""
        pause_s = self.pause_s
        if self.deadline is not None:
            left = (datetime.fromisoformat(self.deadline) - datetime.now(UTC)).total_seconds()
            pause_s = max(min(pause_s, left), 0.0)
        await asyncio.sleep(pause_s)
        yield TriggerEvent(
            {"reason": f"waited for {pause_s:.0f} s, looking again", "since": self.since, "number": self.number}
        )
