"""The former trigger of tasks that pause; rows of deferred tasks name it. It goes after one release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from triggers.checks import Observation
from triggers.poll import PollTrigger


class PauseTrigger(PollTrigger):
    """The check `pause`. `number`: which pause of the wait this is, handed back in the event."""

    def __init__(self, pause_s: float, deadline: str | None = None, since: str | None = None, number: int = 0) -> None:
        end = datetime.now(UTC) + timedelta(seconds=pause_s)
        if deadline is not None:
            end = min(end, datetime.fromisoformat(deadline))
        super().__init__("pause", {}, end.isoformat(), since=since)
        self.number = number

    def event(self, seen: Observation) -> dict[str, Any]:
        return super().event(seen) | {"number": self.number}
