"""Wait for the transfers of a task: the check `transfers`, and their end where a user stops the deferred task."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hooks.task import open_site
from triggers.poll import PollTrigger

KILL_S = 30.0
"""Seconds that a kill waits for the end of the transfers; FTS's part of it ends in the next pass of the monitor."""


class TransfersTrigger(PollTrigger):
    """Fires when all transfers of a request have ended. If a user stops the deferred task, they are killed.

    Args:
        request: The request's row in the ledger.
        deadline: As for `PollTrigger`.
        poll_s: As for `PollTrigger`.
        since: As for `PollTrigger`.
        by: The task, for the history of a kill.
    """

    def __init__(self, request: int, deadline: str, poll_s: float, since: str, by: str) -> None:
        super().__init__("transfers", {"request": request, "since": since}, deadline, poll_s, since)
        self.by = by

    def serialize(self) -> tuple[str, dict[str, Any]]:
        own = {name: getattr(self, name) for name in ("deadline", "poll_s", "since", "by")}
        return ("triggers.fts.TransfersTrigger", {"request": self.arguments["request"], **own})

    async def on_kill(self) -> None:
        from hooks.secrets import KnownSecrets
        from include.stageout.direct import kill_and_wait

        site, clock = open_site(KnownSecrets(asyncio.get_running_loop())), partial(datetime.now, UTC)
        kill = partial(kill_and_wait, site.ledger, self.arguments["request"], by=self.by, clock=clock, seconds=KILL_S)
        ended = await asyncio.to_thread(kill)
        self.log.info("killed the transfers of %s; all have ended: %s", self.by, ended)
