"""Watch a job on a replica's machine: the check `replica-job`, whose result the task gets."""

from __future__ import annotations

import asyncio
from typing import Any

from hooks.task import open_site
from triggers.checks import Observation
from triggers.poll import PollTrigger


class ReplicaJobTrigger(PollTrigger):
    """Fires when the job has ended. If a user stops the deferred task, the job is ended, if `token` started it.

    Args:
        repository: The repository's name in the site configuration.
        replica: The replica's name there.
        verb: `snapshot` or `gc`.
        token: What the task started the job with; None: it joined a job that ran.
        deadline: As for `PollTrigger`.
        poll_s: As for `PollTrigger`.
        since: As for `PollTrigger`.
    """

    def __init__(
        self,
        repository: str,
        replica: str,
        verb: str,
        token: str | None,
        deadline: str | None = None,
        poll_s: float | None = None,
        since: str | None = None,
    ) -> None:
        arguments = {"repository": repository, "replica": replica, "verb": verb}
        super().__init__("replica-job", arguments, deadline, poll_s, since)
        self.token = token

    def serialize(self) -> tuple[str, dict[str, Any]]:
        own = {name: getattr(self, name) for name in ("token", "deadline", "poll_s", "since")}
        return ("triggers.replicas.ReplicaJobTrigger", self.arguments | own)

    def event(self, answer: Observation) -> dict[str, Any]:
        return super().event(answer) | {"result": answer.result}

    async def on_kill(self) -> None:
        from hooks.secrets import KnownSecrets
        from include.replicas.look import job_on

        secrets = KnownSecrets(asyncio.get_running_loop())

        repository, replica, verb = (self.arguments[name] for name in ("repository", "replica", "verb"))

        def end(token: str) -> None:
            ended = job_on(open_site(secrets), repository, replica, verb).end(token)
            self.log.info("%s of %s on %s: %s", verb, repository, replica, "ended" if ended else "over already")

        if self.token is not None:
            await asyncio.to_thread(end, self.token)
