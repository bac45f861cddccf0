"""Wait until nobody holds a lease on a path; the waiting is done by the triggerer."""

from __future__ import annotations

from typing import Any

from sensors.base import WaitSensor


class LeaseFreeSensor(WaitSensor):
    """Succeeds when no lease overlaps `path` of a configured repository. It takes none: the next task to ask may."""

    template_fields = ("repository", "path")
    check = "lease-free"

    def __init__(self, *, repository: str, path: str = "", timeout: float = 7200.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.repository = repository
        self.path = path

    def arguments(self) -> dict[str, Any]:
        """The path as leases have it. Raises BadLeasePath, which is not retried."""
        from include.gateway.errors import BadLeasePath
        from include.gateway.paths import checked_path

        try:
            return {"repository": self.repository, "path": checked_path(self.path)}
        except BadLeasePath as bad:
            message = f"{self.task_id}: path {self.path!r} of {self.repository}: {bad}; {BadLeasePath.hint}"
            raise BadLeasePath(message, repository=self.repository, path=self.path) from None

    free = WaitSensor.found
    """Where tasks come back that an earlier release deferred."""
