"""Reserve before build: a builder asks for its place before it builds, and waits for it without holding a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sensors.base import WaitSensor

__all__ = ["PlaceSensor"]


class PlaceSensor(WaitSensor):
    """Succeeds when `path` of a configured repository is reserved, or free, and no lease is held on it.

    It takes nothing: publishing there takes a lease and looks again. A tree that is there already, or a file in the
    way, ends the wait at once, before anything is built in vain. Returns repository, path, revision and reason.

    Args:
        fqrn: The repository's name in the site configuration.
        path: The destination that is going to be published to.
        until: `reserved` waits for a reservation (an empty nested catalog, made by `ReserveDestinationsOperator`);
            `free` also takes a path that does not exist.
        replaces: What is there is going to be replaced, and is no obstacle.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.

    Raises:
        DestinationError: Nothing can be published there, however long one waits.
    """

    template_fields: Sequence[str] = ("fqrn", "path")
    check = "place"

    def __init__(
        self,
        *,
        fqrn: str,
        path: str,
        until: str = "reserved",
        replaces: bool = False,
        timeout: float = 7200.0,
        **kwargs: Any,
    ) -> None:
        if until not in ("reserved", "free"):
            raise ValueError(f"until is {until!r}: write 'reserved' or 'free'")
        super().__init__(timeout=timeout, **kwargs)
        self.fqrn = fqrn
        self.path = path
        self.until = until
        self.replaces = replaces

    def arguments(self) -> dict[str, Any]:
        return {"repository": self.fqrn, "path": self.path, "wanted": self.until, "replaces": self.replaces}
