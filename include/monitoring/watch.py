"""Watches all nights of a site: notifies people of what goes wrong, and sends each night's summary at its hour."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from include.cvmfs.errors import CvmfsError, WhitelistExpired
from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import GatewayError
from include.gateway.protocol import TaskName
from include.monitoring import alerts
from include.monitoring.findings import Severity
from include.monitoring.render import begun_since, is_made, note_made, read_summary, store_summary, to_html, to_text
from include.monitoring.store_checks import room, written
from include.monitoring.summary import Line, Summary, no_log
from include.nightlies.rules.passes import by_artifact
from include.notify.message import Message, NotifyEvent
from include.notify.notifier import DeliveryOutcome, Notifier
from include.notify.records import seen_of, seen_since, undelivered
from include.settings.errors import SettingsError
from include.settings.model import Slot
from include.site.site import Site
from include.storage.errors import StoreError

log = logging.getLogger(__name__)

GAP = timedelta(minutes=30)
"""If two looks are further apart, it is not known whether a lease was held in between."""


@dataclass(slots=True)
class Watched:
    """The result of one look: messages by what became of them, summaries that were made, and what could not be seen."""

    told: list[tuple[Message, DeliveryOutcome]] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def watch(
    site: Site,
    *,
    now: datetime,
    airflow: alerts.Airflow = alerts.Unasked(),  # noqa: B008 - it has no state
    log_of: Callable[[str], str | None] = no_log,
    logs: Path | None = None,
) -> Watched:
    """Look once. What cannot be seen of one slot or repository is a fault of its own and hides no other.

    ``logs``: where Airflow keeps the logs of tasks. A task that cannot write its log reports nothing, so people are
    notified while there is still room.
    """
    settings, done = site.settings, Watched()
    notifier = Notifier.of(site)

    def tell(message: Message, window: timedelta | None = None) -> DeliveryOutcome:
        outcome = notifier.tell(message, now=now, window=window)
        done.told.append((message, outcome))
        return outcome

    for finding in room(written(settings, settings.stores, logs)):
        if finding.severity is Severity.ERROR:
            tell(alerts.message(finding))
    late = timedelta(minutes=settings.notify.late_minutes)
    for slot in settings.slots.values():
        for tick in nights(site, slot, now):
            seen = read_summary(site.ledger, slot, tick.date, now=now, log_of=log_of)
            tell_failures(site, tick, seen, _left(airflow, now), now, tell)
            for message in alerts.alerts_of(tick, seen, airflow.runs_of(tick), now, late=late):
                tell(message)
            made = is_made(site.ledger, slot.name, tick.date, sent=bool(notifier.ways))
            if alerts.summary_due(slot, tick, now) and not made:
                _send(site, slot, seen, now, tell, done)
    # without a way they would be seen again and again, and never grow old
    for alert in undelivered(site.ledger, now - alerts.LOOK_BACK, NotifyEvent.RUN_FAILED) if notifier.ways else ():
        tell(Message(alert.key, NotifyEvent.RUN_FAILED, alert.severity, alert.title, alert.text))
    for fqrn in settings.repositories:
        for look in (whitelist_alerts, _leases):
            try:
                for message in look(site, fqrn, now):
                    tell(message)
            except (CvmfsError, StoreError, GatewayError, SettingsError, OSError) as error:
                done.faults.append(f"{fqrn}: {error}")
    return done


def nights(site: Site, slot: Slot, now: datetime) -> list[alerts.Tick]:
    """The nights of a slot that are watched."""
    scheduled = alerts.ticks(slot, now)
    if not by_artifact(slot):
        return scheduled
    return scheduled + alerts.begun_by_artifact(slot, begun_since(site.ledger, slot, now - alerts.LOOK_BACK), scheduled)


def _left(airflow: alerts.Airflow, now: datetime) -> Callable[[Line], bool]:
    ended: dict[str, bool | None] = {}

    def left(line: Line) -> bool:
        if line.run is not None and line.run not in ended:
            ended[line.run] = airflow.has_ended(line.run)
        return alerts.has_left(line, ended.get(line.run or ""), now)

    return left


def tell_failures(
    site: Site,
    night: alerts.Tick,
    seen: Summary,
    left: Callable[[Line], bool],
    now: datetime,
    tell: Callable[[Message], DeliveryOutcome],
) -> None:
    """Notify of what a pass has left failed: once for each cause, and for an artifact's own failures once for each."""
    window = timedelta(hours=site.settings.notify.window_hours)
    for cause in alerts.causes(seen, left):
        keys = [cause.key_of(line) for line in cause.lines]
        new = alerts.untold(cause, seen_of(site.ledger, keys, now - window))
        if new is None:
            continue
        if tell(new.message(until=night.until, now=now)) not in {DeliveryOutcome.FAILED, DeliveryOutcome.NOBODY}:
            for line in new.lines:
                seen_since(site.ledger, cause.key_of(line), now, window)


def _send(
    site: Site,
    slot: Slot,
    seen: Summary,
    now: datetime,
    tell: Callable[[Message, timedelta | None], DeliveryOutcome],
    done: Watched,
) -> None:
    file = store_summary(site.settings.paths.var, seen)
    message = Message(
        key=f"summary:{slot.name}:{seen.date}",
        event=NotifyEvent.SUMMARY,
        severity="ok" if seen.good else "error",
        title=seen.headline,
        text=to_text(seen),
        html=to_html(seen),
    )
    outcome = tell(message, timedelta(0))  # who may send it is settled by the ledger's row of summaries
    faults = {DeliveryOutcome.FAILED: "no message could be sent", DeliveryOutcome.NOBODY: "no way is configured"}
    note_made(site.ledger, seen, file, now=now, fault=faults.get(outcome))
    done.summaries.append(seen.headline)


def whitelist_alerts(site: Site, fqrn: str | None, now: datetime) -> list[Message]:
    """The alerts about a repository's whitelist; none while it lasts for long enough."""
    if fqrn is None:
        return []
    cure = f"Where the master key is: nightshift repo resign {fqrn}"
    try:
        whitelist = site.repository(fqrn).trusted.whitelist
    except WhitelistExpired as over:
        what = f"whitelist of {fqrn} has ended"
        return [
            Message(
                f"whitelist:{fqrn}:ended", NotifyEvent.WHITELIST, "error", what, f"{over}; clients refuse it.", cure
            )
        ]
    if whitelist is None:
        return []
    days = (whitelist.expires - now) / timedelta(days=1)
    if days >= site.settings.notify.whitelist_days:
        return []
    return [
        Message(
            f"whitelist:{fqrn}:{whitelist.expires.date()}", NotifyEvent.WHITELIST, "error" if days < 2 else "warning",
            f"whitelist of {fqrn} ends in {days:.1f} days",
            f"It ends at {whitelist.expires:%Y-%m-%d %H:%M} UTC; from then on clients refuse the repository.",
            cure,
        )
    ]  # fmt: skip


def _leases(site: Site, fqrn: str, now: datetime) -> list[Message]:
    with site.gateway(fqrn) as client:
        held = [lease for lease in client.leases() if lease.repository == fqrn]
    limit, found = timedelta(minutes=site.settings.notify.stuck_lease_minutes), []
    for lease in held:
        since = seen_since(site.ledger, lease_key(lease), now, GAP)
        if now - since >= limit:
            found.append(stuck(lease, since, now))
    return found


def lease_key(lease: LeaseInfo) -> str:
    """Under which key the ledger has since when a lease has been seen."""
    return f"lease:{lease.full_path}:{lease.key_id}:{lease.hostname}"


def stuck(lease: LeaseInfo, since: datetime, now: datetime) -> Message:
    """A lease that is held for longer than any should be."""
    whose = "a task of ours" if TaskName.parse(lease.hostname) else "another user"
    minutes = (now - since).total_seconds() / 60
    return Message(
        f"stuck-lease:{lease.full_path}:{lease.key_id}:{lease.hostname}", NotifyEvent.STUCK_LEASE, "warning",
        f"{lease.full_path} has been leased for {minutes:.0f} minutes",
        f"Held by {whose}, {lease.hostname!r} with key {lease.key_id}. No one else can publish there.",
        "See whether its holder still works. Of a dead task the DAG `leases` ends it; else let an administrator of the "
        "gateway end it.",
    )  # fmt: skip
