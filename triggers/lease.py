"""The former trigger of tasks that wait for a lease; rows of deferred tasks name it. It goes after one release."""

from __future__ import annotations

from typing import Any

from triggers.checks import Observation
from triggers.poll import PollTrigger


class LeaseFreeTrigger(PollTrigger):
    """The check `lease-free`."""

    def __init__(
        self,
        connection_id: str,  # noqa: ARG002
        repository: str,
        path: str,
        deadline: str | None = None,
        poll_s: float | None = None,
        since: str | None = None,
    ) -> None:
        super().__init__("lease-free", {"repository": repository, "path": path}, deadline, poll_s, since)

    def event(self, seen: Observation) -> dict[str, Any]:
        return super().event(seen) | {"free": seen.ready}
