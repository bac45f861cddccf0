"""The former trigger of tasks that wait for an object; rows of deferred tasks name it. It goes after one release."""

from __future__ import annotations

from triggers.poll import PollTrigger

StoreTrigger = PollTrigger


class ObjectTrigger(PollTrigger):
    """The check `object`."""

    def __init__(self, store: str, key: str, deadline: str | None = None, poll_s: float | None = None) -> None:
        super().__init__("object", {"store": store, "key": key}, deadline, poll_s)
