"""Wait until no lease is held on a path; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sensors.base import WaitSensor

__all__ = ["LeaseFreeSensor"]


class LeaseFreeSensor(WaitSensor):
    """Succeeds when no lease overlaps a path of a repository. It takes none: the next task to ask may.

    Args:
        fqrn: The repository's name. It need not be configured if `gateway_conn_id` is given.
        path: An absolute path within the repository; empty: all of it.
        gateway_conn_id: A connection of type `cvmfs_gateway`, whose address is asked; None: the one that the site
            configuration names for the repository.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.

    Raises:
        BadLeasePath: The path is malformed.
    """

    template_fields: Sequence[str] = ("fqrn", "path", "gateway_conn_id")
    check = "lease-free"

    def __init__(
        self,
        *,
        fqrn: str,
        path: str = "",
        gateway_conn_id: str | None = None,
        timeout: float = 7200.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.fqrn = fqrn
        self.path = path
        self.gateway_conn_id = gateway_conn_id

    def arguments(self) -> dict[str, Any]:
        """The path as leases have it. Raises BadLeasePath, which is not retried."""
        from include.gateway.errors import BadLeasePath
        from include.gateway.protocol import checked_path

        try:
            found = {"repository": self.fqrn, "path": checked_path(self.path)}
        except BadLeasePath as bad:
            message = f"{self.task_id}: path {self.path!r} of {self.fqrn}: {bad}; {BadLeasePath.hint}"
            raise BadLeasePath(message, repository=self.fqrn, path=self.path) from None
        return found | ({"gateway_conn_id": self.gateway_conn_id} if self.gateway_conn_id else {})
