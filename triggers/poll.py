"""Waiting: the one loop in which tasks wait for something, and tasks that wait while a service cannot be reached.

Nothing here holds a worker or a slot of a pool: the triggerer waits, and it only watches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from hooks.task import open_site
from include.errors import is_retryable
from include.nightlies.rules.passes import is_outage, pauses
from triggers.checks import CHECKS, Observation

if TYPE_CHECKING:
    from include.site.site import Site

T = TypeVar("T")

FIRST_PAUSE_S = 1.0
RECOVERED_S = 600.0
"""Work that went on for so long before it met an outage has met another one than before."""
CURE = "See that it runs and that workers reach it (nightshift preflight names what cannot be reached)."


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


class OutlastsOutages:
    """Operators and sensors that outlast an outage: they try again with growing pauses, within the same try.

    `outage_minutes` of the site is how long they wait. After it the error counts like any other, and further tries of
    the task wait as long again.
    """

    _pauses = 0
    """Number of pauses of this try so far."""

    def outlasts(self, site: Site) -> bool:
        """Tell whether an outage would be waited out now: then a step is to record nothing of it."""
        return getattr(self, "deferrable", True) and self._pauses < len(_planned(site))

    def outlasting(self, site: Site, work: Callable[[], T]) -> T:
        """Do what may meet an outage.

        Args:
            site: The site, for its `outage_minutes`.
            work: What to do; called again from the start after a pause.

        Returns:
            What `work` returns.

        Raises:
            TaskDeferred: It met an outage; the task begins again by `outage_over`.
            NightshiftError: What `work` raises, also once `outage_minutes` are over.
        """
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            if not is_outage(error) or not self.outlasts(site):
                raise
            planned = _planned(site)
            waited = 0 if time.monotonic() - began > RECOVERED_S else self._pauses
            left_s = sum(planned[waited:])
            self.log.warning(  # type: ignore[attr-defined]
                "%s. %s Looking again in %.0f s, for %.0f minutes at most", error, CURE, planned[waited], left_s / 60
            )
            end = datetime.now(UTC) + timedelta(seconds=planned[waited])
            trigger = PollTrigger("pause", {}, end.isoformat())
            self.defer(trigger=trigger, method_name="outage_over", kwargs={"number": waited + 1})  # type: ignore[attr-defined]
            raise AssertionError from error  # defer raises

    def outage_over(self, context: Context, event: dict[str, Any], number: int = 0) -> Any:
        """Begin again after a pause; whether the outage is over, the work finds out.

        Args:
            context: The context of the task.
            event: What the trigger reports.
            number: How many pauses there were.

        Returns:
            What the task returns.
        """
        self._pauses = number
        self.log.info("back from waiting: %s", event["reason"])  # type: ignore[attr-defined]
        return self.execute(context)  # type: ignore[attr-defined]


def _planned(site: Site) -> tuple[float, ...]:
    return pauses(site.settings.outage_minutes * 60.0)
