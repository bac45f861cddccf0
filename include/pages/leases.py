"""Who holds leases of a repository at the moment, as its gateway lists them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from include.gateway.client.values import LeaseInfo
from include.gateway.holders import TaskName
from include.pages.addresses import task_of
from include.pages.asked import Asked


def open_leases(asked: Asked, fqrn: str) -> Any:
    """The open leases of a repository, each with its holder's task and its age; None where no gateway is."""
    settings = asked.site.settings.repository(fqrn)
    if settings.server is not None and settings.server.behind == "none":
        return None

    def held() -> list[LeaseInfo]:
        with asked.site.gateway(fqrn) as client:
            return [lease for lease in client.leases() if lease.repository == fqrn]

    answer = asked.services.ask(f"leases {fqrn}", held)
    length = asked.site.settings.gateway.max_lease_time_s
    return answer, [_lease(lease, asked.now, length) for lease in answer.value or ()]


def _lease(lease: LeaseInfo, now: datetime, length: float) -> dict[str, Any]:
    task = TaskName.parse(lease.hostname)
    left = (lease.expires - now).total_seconds()
    return {
        "path": lease.path or "/",
        "holder": lease.hostname,
        "key": lease.key_id,
        "task": task_of(lease.hostname, f"{task.dag_id}/{task.run_id}") if task else None,
        # a gateway reports when a lease ends, not when it was granted
        "age_s": max(0.0, length - left),
        "left_s": left,
    }
