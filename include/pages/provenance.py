"""*Provenance*: who published a path of a repository, the newest first; open leases. *Audit*: who removed what."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from include.gateway.client.leases import LeaseInfo
from include.gateway.protocol import TaskName
from include.monitoring.audit import KINDS, PAGE, AuditChoice, AuditEntry, AuditKey, audit
from include.pages.asked import Asked, BadPageQuery, PageForOperators
from include.pages.registry import run_of, task_of
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


def read_audit(asked: Asked) -> dict[str, Any]:
    """The newest acts; of one `kind`, by one `who`, of the days `since` to `until` (UTC), `below` an act of the list.

    Raises BadPageQuery, and PageForOperators for a user who is no operator.
    """
    if not asked.user.operator:
        raise PageForOperators("Audit")
    kind, who = asked.choice("kind", dict.fromkeys(KINDS)), asked.text("who", longest=256)
    since, until, below = asked.day("since"), asked.day("until"), asked.text("below", longest=128)
    if since and until and until < since:
        raise BadPageQuery("until", "before the first day")
    try:
        ended = None if until is None else datetime.combine(until, time(), UTC) + timedelta(days=1)
        key = AuditKey.parse(below) if below else None
    except (ValueError, OverflowError):
        raise BadPageQuery("below" if below else "until", "no place in the audit") from None
    began = None if since is None else datetime.combine(since, time(), UTC)
    entries = audit(asked.site.ledger, AuditChoice(kind, who, began, ended), below=key, limit=PAGE + 1)
    shown = entries[:PAGE]
    given = {"kind": kind, "who": who, "since": since, "until": until}
    return {
        "kinds": KINDS,
        **given,
        "rows": [{"entry": entry, "run": _run_of_act(entry)} for entry in shown],
        "older": _audit_address(given, shown[-1].key) if len(entries) > PAGE else None,
        "newest": _audit_address(given),
        "begun": key is not None,
        "every": 0 if key is not None else 60,
    }


def _run_of_act(entry: AuditEntry) -> str | None:
    return run_of(entry.run) if entry.run and not entry.run.startswith("by hand/") else None


def _audit_address(given: dict[str, Any], below: AuditKey | None = None) -> str:
    values = {name: str(value) for name, value in given.items() if value}
    return f"audit?{urlencode(values | ({'below': below.format()} if below else {}))}"
