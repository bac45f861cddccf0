"""The one loop in which tasks wait for something. It only watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from hooks.task import open_site
from include.errors import is_retryable
from triggers.checks import CHECKS, Observation

FIRST_PAUSE_S = 1.0


class PollTrigger(BaseTrigger):
    """Fires when a check finds what is waited for, when it never can, or at the deadline.

    It looks in a thread, at growing intervals of at most `poll_s` seconds. An error that may pass is logged and waited
    out; any other ends the wait and is the reason in the event.

    Args:
        check: A key of `triggers.checks.CHECKS`.
        arguments: The check's arguments, as JSON.
        deadline: ISO 8601 with zone, so that a restart of the triggerer does not prolong the wait. None: no deadline.
        poll_s: Most seconds between two checks; None: that of the check's row.
        since: When the wait began, as ISO 8601; the event hands it back to the task.
    """

    def __init__(
        self,
        check: str,
        arguments: Mapping[str, Any],
        deadline: str | None = None,
        poll_s: float | None = None,
        since: str | None = None,
    ) -> None:
        super().__init__()
        self.check = check
        self.arguments = dict(arguments)
        self.deadline = deadline
        self.poll_s = CHECKS[check].poll_s if poll_s is None else poll_s
        self.since = since

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("check", "arguments", "deadline", "poll_s", "since")
        return ("triggers.poll.PollTrigger", {name: getattr(self, name) for name in names})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fires one event: `found`, the `reason` in words, and `since`."""
        yield TriggerEvent(self.event(await self._last_look()))

    def event(self, answer: Observation) -> dict[str, Any]:
        """Return the values for the task that comes back."""
        return {"found": answer.ready, "reason": answer.reason, "since": self.since}

    async def _last_look(self) -> Observation:
        from hooks.secrets import KnownSecrets

        connect = cache(partial(open_site, KnownSecrets(asyncio.get_running_loop())))
        look = partial(CHECKS[self.check].look, connect, **self.arguments)
        end = datetime.fromisoformat(self.deadline) if self.deadline else datetime.max.replace(tzinfo=UTC)
        pause_s = FIRST_PAUSE_S
        while True:
            left_s = (end - datetime.now(UTC)).total_seconds()
            try:
                answer = await asyncio.to_thread(look)
            except Exception as error:  # noqa: BLE001 - the event carries it to the task, which fails with it
                answer = Observation(False, str(error))
                if not is_retryable(error, otherwise=False):
                    return answer
                self.log.warning("%s", error)
            if answer.ready or left_s <= 0:
                return answer
            await asyncio.sleep(min(pause_s, self.poll_s, left_s))
            pause_s *= 2
