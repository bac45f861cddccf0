"""The former trigger of tasks that wait for a thaw; rows of deferred tasks name it. It goes after one release."""

from __future__ import annotations

from triggers.poll import PollTrigger


class ThawTrigger(PollTrigger):
    """The check `thaw`."""

    def __init__(self, repository: str, poll_s: float | None = None) -> None:
        super().__init__("thaw", {"repository": repository}, poll_s=poll_s)
