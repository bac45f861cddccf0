"""*Provenance*: who published a path of a repository, the newest first; open leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from include.gateway.client.values import LeaseInfo
from include.gateway.protocol import TaskName
from include.pages.asked import Asked, BadPageQuery
from include.pages.registry import task_of
from include.provenance.records import nearest


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


SHOWN = 50


def read(asked: Asked) -> dict[str, Any]:
    """The records of `path` in `repository`, and of the paths above it. Raises BadPageQuery."""
    repository, path = asked.text("repository"), asked.text("path")
    if repository is None or path is None or not path.startswith("/"):
        raise BadPageQuery("path", "a repository and an absolute path in it are needed")
    nearby = nearest(asked.site.ledger, repository, path, limit=SHOWN)
    records = [(record, document, task_of(record.holder, record.run_id)) for record, document in nearby]
    return {"repository": repository, "path": path, "records": records, "shown": SHOWN, "every": 60}
