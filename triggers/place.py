"""The former trigger of tasks that wait for a place; rows of deferred tasks name it. It goes after one release."""

from __future__ import annotations

from triggers.poll import PollTrigger


class PlaceTrigger(PollTrigger):
    """The check `place`."""

    def __init__(
        self,
        repository: str,
        path: str,
        wanted: str,
        replaces: bool = False,
        deadline: str | None = None,
        poll_s: float | None = None,
    ) -> None:
        arguments = {"repository": repository, "path": path, "wanted": wanted, "replaces": replaces}
        super().__init__("place", arguments, deadline, poll_s)
