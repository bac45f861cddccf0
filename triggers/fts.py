"""Watch jobs of an FTS server: the check `fts-jobs`, whose states the task gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hooks.site import open_site
from triggers.checks import Observation
from triggers.poll import PollTrigger


class FtsJobTrigger(PollTrigger):
    """Fires when all jobs have ended. If a user stops the deferred task, the jobs are canceled.

    Args:
        fts_conn_id: A connection of type `fts`.
        job_ids: The ids of the jobs.
        deadline: As for `PollTrigger`.
        poll_s: As for `PollTrigger`.
        since: As for `PollTrigger`.
        at_rest: Whether to wait, too, until no copy of a job that has ended may still write.
    """

    def __init__(
        self,
        fts_conn_id: str,
        job_ids: Sequence[str],
        deadline: str | None = None,
        poll_s: float | None = None,
        since: str | None = None,
        *,
        at_rest: bool = False,
    ) -> None:
        arguments = {"fts_conn_id": fts_conn_id, "job_ids": list(job_ids), "at_rest": at_rest}
        super().__init__("fts-jobs", arguments, deadline, poll_s, since)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        own = {name: getattr(self, name) for name in ("deadline", "poll_s", "since")}
        return ("triggers.fts.FtsJobTrigger", self.arguments | own)

    def event(self, seen: Observation) -> dict[str, Any]:
        return super().event(seen) | {"result": seen.result}

    async def on_kill(self) -> None:
        from hooks.secrets import KnownSecrets
        from include.fts.client.open import connected_client

        secrets = KnownSecrets(asyncio.get_running_loop())

        def cancel() -> None:
            with connected_client(open_site(secrets).secrets.get(self.arguments["fts_conn_id"])) as client:
                client.cancel(self.arguments["job_ids"])
            self.log.info("canceled FTS jobs %s", ", ".join(self.arguments["job_ids"]))

        await asyncio.to_thread(cancel)
