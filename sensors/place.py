"""Reserve before build: a builder asks for its place before it builds, and waits for it without holding a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sensors.base import NightshiftSensor
from sensors.objects import NotThere
from triggers.place import POLL_S, PlaceTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.publishers.path_state import SeenPlace


class PlaceSensor(NightshiftSensor):
    """Succeeds when `path` of a configured repository is reserved, or free, and nobody holds a lease on it.

    It takes nothing: whoever publishes there asks again under a lease. A tree that stands there already, or a file in
    the way, ends the waiting at once, before anything was built in vain. Returns repository, path, revision, reason.

    :param path: the destination that is going to be published to.
    :param until: `reserved` waits for its reservation (an empty nested catalog, made by `ReserveDestinationsOperator`);
        `free` is content with nothing being there.
    :param replaces: what stands there is going to be replaced, and is no obstacle.
    :param timeout: seconds to wait before the task fails, naming what is missing or who holds the path.
    """

    template_fields = ("repository", "path")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        repository: str,
        path: str,
        until: str = "reserved",
        replaces: bool = False,
        timeout: float = 7200.0,
        poke_interval: float = POLL_S,
        **kwargs: Any,
    ) -> None:
        if until not in ("reserved", "free"):
            raise ValueError(f"until is {until!r}: say 'reserved' or 'free'")
        super().__init__(timeout=timeout, poke_interval=poke_interval, **kwargs)
        self.repository = repository
        self.path = path
        self.until = until
        self.replaces = replaces

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        seen = self._look()
        if seen.ready:
            return self._found(seen)
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        self.log.info("%s%s: %s; waiting until %s", self.repository, seen.path, seen.reason, deadline.isoformat())
        return self.defer(
            trigger=PlaceTrigger(
                self.repository, seen.path, self.until, self.replaces, deadline.isoformat(), self.poke_interval
            ),
            method_name="found",
            timeout=timedelta(seconds=self.timeout + 2 * self.poke_interval + 60),
        )

    def found(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The trigger's answer. What can never be is raised here as what it is."""
        seen = self._look()
        if not event["found"] and not seen.ready:
            raise NotThere(f"{self.repository}{seen.path} did not become {self.until}: {event['reason']}")
        return self._found(seen)

    def _look(self) -> SeenPlace:
        from include.publishers.path_state import WantedPlace, look_at

        return look_at(self.connections(), self.repository, self.path, WantedPlace(self.until), replaces=self.replaces)

    def _found(self, seen: SeenPlace) -> dict[str, Any]:
        return {"repository": self.repository, "path": seen.path, "revision": seen.revision, "reason": seen.reason}
