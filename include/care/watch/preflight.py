"""Notifies people of what the preflight found."""

from __future__ import annotations

from datetime import UTC, datetime

from include.care.notify.message import Message, NotifyEvent
from include.care.notify.notifier import Notifier
from include.care.preflight.findings import Finding, PreflightReport, Severity
from include.site.site import Site

_EVENTS = {"whitelist": NotifyEvent.WHITELIST, "leases": NotifyEvent.STUCK_LEASE}


def tell(site: Site, report: PreflightReport) -> None:
    """One message for each error; of warnings only those that are shown nowhere else: whitelists that end."""
    notifier = Notifier.of(site)
    for finding in report.findings:
        if finding.severity is Severity.ERROR or (
            finding.severity is Severity.WARNING and finding.check == "whitelist"
        ):
            notifier.tell(message(finding), now=datetime.now(UTC))


def message(finding: Finding) -> Message:
    """The message about a finding; the same thing is the same cause, whatever was found."""
    event = _EVENTS.get(finding.check, NotifyEvent.PREFLIGHT)
    return Message(
        key=f"{event.value}:{finding.check}:{finding.subject}",
        event=event,
        severity=finding.severity.value,
        title=f"{finding.check} {finding.subject}: {finding.seen}",
        text=finding.seen,
        cure=finding.cure,
    )
