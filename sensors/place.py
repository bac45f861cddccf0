"""Reserve before build: a builder asks for its place before it builds, and waits for it without holding a worker."""

from __future__ import annotations

from typing import Any

from sensors.base import WaitSensor


class PlaceSensor(WaitSensor):
    """Succeeds when `path` of a configured repository is reserved, or free, and nobody holds a lease on it.

    It takes nothing: publishing there takes a lease and looks again. A tree that is there already, or a file in the
    way, ends the wait at once, before anything is built in vain. Returns repository, path, revision and reason.

    Args:
        path: The destination that is going to be published to.
        until: `reserved` waits for a reservation (an empty nested catalog, made by `ReserveDestinationsOperator`);
            `free` also takes a path that does not exist.
        replaces: What is there is going to be replaced, and is no obstacle.
    """

    template_fields = ("repository", "path")
    check = "place"

    def __init__(
        self,
        *,
        repository: str,
        path: str,
        until: str = "reserved",
        replaces: bool = False,
        timeout: float = 7200.0,
        **kwargs: Any,
    ) -> None:
        if until not in ("reserved", "free"):
            raise ValueError(f"until is {until!r}: say 'reserved' or 'free'")
        super().__init__(timeout=timeout, **kwargs)
        self.repository = repository
        self.path = path
        self.until = until
        self.replaces = replaces

    def arguments(self) -> dict[str, Any]:
        return {"repository": self.repository, "path": self.path, "wanted": self.until, "replaces": self.replaces}
