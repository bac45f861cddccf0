"""Wait until nobody holds a lease on a path; the waiting is done by the triggerer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sensors.base import NightshiftSensor
from sensors.objects import NotThere
from triggers.lease import POLL_S, LeaseFreeTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class LeaseFreeSensor(NightshiftSensor):
    """Succeeds when no lease overlaps `path` of a configured repository. It takes none: the next one to ask may.

    :param timeout: seconds to wait before the task fails, naming the holder.
    """

    template_fields = ("repository", "path")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        repository: str,
        path: str = "",
        timeout: float = 7200.0,
        poke_interval: float = POLL_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, poke_interval=poke_interval, **kwargs)
        self.repository = repository
        self.path = path

    def execute(self, context: Context) -> None:  # noqa: ARG002
        connections = self.connections()
        path = self._checked_path()
        holder = connections.gateway(self.repository).holder(self.repository, path)
        if holder is None:
            return
        self.log.info("%s is held by %r until %s", holder.full_path, holder.hostname, holder.expires)
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        self.defer(
            trigger=LeaseFreeTrigger(
                connections.site.repository(self.repository).gateway,
                self.repository,
                path,
                deadline.isoformat(),
                self.poke_interval,
            ),
            method_name="free",
            timeout=timedelta(seconds=self.timeout + 60),
        )

    def free(self, context: Context, event: dict[str, Any]) -> None:  # noqa: ARG002
        """The trigger's answer."""
        if not event["free"]:
            raise NotThere(f"{self.repository}{self.path or '/'} did not become free: {event['reason']}")

    def _checked_path(self) -> str:
        """The path as leases have it; templates are filled in by now. Raises BadLeasePath, which is not retried."""
        from include.gateway.errors import BadLeasePath
        from include.gateway.paths import checked_path

        try:
            return checked_path(self.path)
        except BadLeasePath as bad:
            message = f"{self.task_id}: path {self.path!r} of {self.repository}: {bad}; {BadLeasePath.hint}"
            raise BadLeasePath(message, repository=self.repository, path=self.path) from None
