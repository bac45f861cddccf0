"""Notifies people by Apprise: once of each cause within a window, and without failing the caller.

The ledger has the causes: when one was seen, and whether people were notified of it lately. Apprise:
https://appriseit.com/services/.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Column, Connection, Engine, Integer, RowMapping, Table, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from include.errors import NightshiftError
from include.ledger.engine import Bind, reading, writing
from include.ledger.errors import LedgerError
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata
from include.settings.errors import BadConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets, Secrets, connection_variable
from include.settings.services import Notify

if TYPE_CHECKING:
    from apprise import Apprise


class NotifyEvent(Enum):
    """Kind of an event."""

    FAILED = "failed"
    RUN_FAILED = "run-failed"
    DEADLINE = "deadline"
    NOT_STARTED = "not-started"
    WHITELIST = "whitelist"
    STUCK_LEASE = "stuck-lease"
    APPROVAL = "approval"
    PREFLIGHT = "preflight"
    SUMMARY = "summary"
    CREDENTIAL = "credential"
    """Transfers of a user wait for a credential."""
    SITE = "site"
    """A storage site came into another state."""
    TEST = "test"
    """`nightshift notify test`."""


@dataclass(frozen=True, slots=True)
class Message:
    """`key` names the cause: the same cause has the same key, however it is worded. `severity`: error, warning or ok.

    `code`: of the error, if there is one. `links` maps names to URLs. `html`: the same text for mail.
    """

    key: str
    event: NotifyEvent
    severity: str
    title: str
    text: str
    cure: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    html: str | None = None
    code: str = ""

    def plain(self) -> str:
        """All of it as lines."""
        links = [f"{name}: {url}" for name, url in self.links.items()]
        parts = [self.text, f"What to do: {self.cure}" if self.cure else "", "\n".join(links)]
        return "\n\n".join(part for part in parts if part) + "\n"


def cause_of(key: str) -> str:
    """The hash that identifies a cause in the ledger's index."""
    return hashlib.sha256(key.encode()).hexdigest()


log = logging.getLogger(__name__)


class NotifyError(NightshiftError):
    """A service did not take a message. No message carries a secret, nor the URL of a service."""

    code = "notification-error"
    retryable = True


class NotifySite(Protocol):
    """Settings, secrets and ledger of a site."""

    settings: SiteSettings
    secrets: Secrets

    @property
    def ledger(self) -> Engine: ...


class DeliveryOutcome(Enum):
    """Outcome of a message."""

    TOLD = "notified"
    KNOWN = "already notified"
    NOBODY = "no way is configured"
    FAILED = "could not be sent"


@dataclass(frozen=True, slots=True)
class Notifier:
    """`ways`: how people are notified, by name; each raises NotifyError or SettingsError if it does not work."""

    settings: Notify
    ledger: Engine
    ways: Mapping[str, Callable[[Message], None]] = field(default_factory=dict)

    @classmethod
    def of(cls, site: NotifySite) -> Notifier:
        """By what `notify:` of the configuration names."""
        settings, secrets = site.settings.notify, site.secrets
        services = settings.apprise
        names = services.connections if services else ()
        timeout_s = services.timeout_s if services else 0.0
        ways = {f"apprise {name}": partial(_by_connection, secrets, name, timeout_s) for name in names}
        return cls(settings, site.ledger, ways)

    def tell(self, message: Message, *, now: datetime, window: timedelta | None = None) -> DeliveryOutcome:
        """Notify people of a cause, unless they were notified of it within the window. Raises nothing.

        A way that fails stops no other. If all fail or none is configured, the next process that sees the cause tries
        again.
        """
        window = timedelta(hours=self.settings.window_hours) if window is None else window
        try:
            if not claim(self.ledger, message, now=now, window=window):
                return DeliveryOutcome.KNOWN
        except LedgerError as error:
            log.warning("not known whether it was sent already, so it is sent again: %s", error)
        log.warning("%s: %s", message.event.value, message.title)
        faults = {name: fault for name, fault in self.send(message).items() if fault is not None}
        if len(faults) < len(self.ways):
            return DeliveryOutcome.TOLD
        try:
            not_told(self.ledger, message, "; ".join(faults.values()) or None)
        except LedgerError as error:
            log.warning("not recorded: %s", error)
        return DeliveryOutcome.FAILED if self.ways else DeliveryOutcome.NOBODY

    def send(self, message: Message) -> dict[str, str | None]:
        """Send a message by each way, also if people were notified of its cause. Raises nothing.

        Returns:
            By the name of each way, the reason why it failed; None: the message was sent.
        """
        faults: dict[str, str | None] = {}
        for name, way in self.ways.items():
            try:
                way(message)
                faults[name] = None
            except (NotifyError, SettingsError) as error:
                faults[name] = str(error)
                log.error("not sent by %s: %s", name, error)
        return faults


def send(connection: ConnectionSecrets, message: Message, *, timeout_s: float) -> None:
    """Send one message to the service of a connection. Raises NotifyError, BadConnection.

    Args:
        connection: Its password is the Apprise URL.
        message: What is sent: as HTML in a mail, as plain text elsewhere.
        timeout_s: How long the service may take.
    """
    from apprise import NotifyFormat, NotifyType

    kinds = {"error": NotifyType.FAILURE, "warning": NotifyType.WARNING}
    html = message.html if (connection.password or "").startswith("mailto") else None
    result = service_of(connection).notify(
        message.plain() if html is None else html,
        title=f"{message.severity}: {message.title}",
        notify_type=kinds.get(message.severity, NotifyType.INFO),
        body_format=NotifyFormat.TEXT if html is None else NotifyFormat.HTML,
        timeout=timeout_s,
    )
    if not result:
        what = f"connection {connection.id!r}: its service did not take the message ({result.status.name.lower()})"
        raise NotifyError(f"{what}. Check its Apprise URL: apprise -vv -b test '<URL>'.")


def service_of(connection: ConnectionSecrets) -> Apprise:
    """The service that a connection names; sends nothing. Raises BadConnection, which does not quote the URL."""
    from apprise import Apprise, AppriseAsset

    # Apprise writes URLs, which are secrets, into its log
    logging.getLogger("apprise").addFilter(_nothing)
    asset = AppriseAsset(
        async_mode=False, http_redirects=False, allow_templates=False, storage_mode="memory", app_id="Nightshift"
    )
    service = Apprise(asset=asset)
    variable = connection_variable(connection.id)
    if not connection.password or not service.add(connection.password):
        raise BadConnection(
            connection.id, variable, "has no Apprise URL as its password, such as mailtos://… or slack://…"
        )
    mail = service[0]
    if getattr(mail, "secure_mode", "") == "insecure" and mail.password:
        raise BadConnection(connection.id, variable, "would send its password in the clear; use mailtos://")
    return service


def _by_connection(secrets: Secrets, name: str, timeout_s: float, message: Message) -> None:
    send(secrets.get(name), message, timeout_s=timeout_s)


def _nothing(record: logging.LogRecord) -> bool:  # noqa: ARG001 - logging's signature
    return False


alerts = Table(
    "alerts",
    metadata,
    # one row a cause; `times` counts how often it was seen, with or without a notification
    Column("cause", hexadecimal(64), primary_key=True),
    Column("key", exact(512), nullable=False),
    Column("event", exact(32), nullable=False),
    Column("severity", exact(16), nullable=False),
    Column("title", long_text(), nullable=False),
    Column("text", long_text(), nullable=False),
    Column("times", Integer, nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime, nullable=False),
    Column("told_at", UtcTime),
    Column("fault", long_text()),
    **TABLE_OPTIONS,
)
AT_ONCE = 500
"""Keys of one query."""
SEEN = "seen"
"""The event of what is only watched."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A cause. `told_at`: when people were last notified; `fault`: why that did not work."""

    key: str
    event: str
    severity: str
    title: str
    text: str
    times: int
    first_seen_at: datetime
    last_seen_at: datetime
    told_at: datetime | None
    fault: str | None

    @classmethod
    def from_row(cls, row: RowMapping) -> Alert:
        return cls(**{name: row[name] for name in cls.__slots__})


def claim(bind: Bind, message: Message, *, now: datetime, window: timedelta) -> bool:
    """Note that a cause was seen; whether the caller is to notify people: they were not notified within the window.

    If several processes see it at once, exactly one of them is to notify people.
    """
    cause = cause_of(message.key)

    def work(connection: Connection) -> bool:
        values = {
            "event": message.event.value,
            "severity": message.severity,
            "title": message.title,
            "text": message.plain(),
            "last_seen_at": now,
        }
        where = alerts.c.cause == cause
        if connection.scalar(select(alerts.c.cause).where(where)) is None:
            try:
                with connection.begin_nested():
                    connection.execute(
                        insert(alerts).values(cause=cause, key=message.key[:512], times=0, first_seen_at=now, **values)
                    )
            except IntegrityError:
                pass  # another process saw it in this moment
        connection.execute(update(alerts).where(where).values(times=alerts.c.times + 1, **values))
        stale = or_(alerts.c.told_at.is_(None), alerts.c.told_at <= now - window)
        return bool(connection.execute(update(alerts).where(where, stale).values(told_at=now, fault=None)).rowcount)

    return writing(bind, work)


def not_told(bind: Bind, message: Message, fault: str | None) -> None:
    """Give a claim back: no one was notified, so that the next process that sees the cause tries again.

    Args:
        fault: Why each way failed; None: no way is configured.
    """

    def work(connection: Connection) -> None:
        where = alerts.c.cause == cause_of(message.key)
        connection.execute(update(alerts).where(where).values(told_at=None, fault=fault))

    writing(bind, work)


def undelivered(bind: Bind, since: datetime, event: NotifyEvent) -> Sequence[Alert]:
    """The causes of an event, seen since then, of which no message was sent."""
    query = select(alerts).where(alerts.c.event == event.value, alerts.c.last_seen_at >= since)
    query = query.where(alerts.c.told_at.is_(None))
    with reading(bind) as connection:
        return [Alert.from_row(row) for row in connection.execute(query).mappings()]


def append_note(bind: Bind, key: str, note: Mapping[str, Any], *, now: datetime, limit: int) -> None:
    """Keep a note below a key until it is taken, at most `limit` of them; people are not notified of it."""
    cause = cause_of(key)

    def work(connection: Connection) -> None:
        where = alerts.c.cause == cause
        stored = connection.scalar(select(alerts.c.text).where(where).with_for_update())
        notes = json.loads(stored) if stored else []
        if len(notes) >= limit:
            return
        values = {"text": json.dumps([*notes, dict(note)]), "times": len(notes) + 1, "last_seen_at": now}
        if stored is not None:
            connection.execute(update(alerts).where(where).values(**values))
            return
        what = {"event": SEEN, "severity": SEEN, "title": key, "first_seen_at": now}
        connection.execute(insert(alerts).values(cause=cause, key=key[:512], **what, **values))

    try:
        writing(bind, work)
    except IntegrityError:
        writing(bind, work)  # another process wrote the first one in this moment


def take_notes(bind: Bind, key: str) -> list[dict[str, Any]]:
    """The notes of a key, in the order in which they came; they are forgotten."""
    where = alerts.c.cause == cause_of(key)

    def work(connection: Connection) -> list[dict[str, Any]]:
        stored = connection.scalar(select(alerts.c.text).where(where).with_for_update())
        connection.execute(delete(alerts).where(where))
        return json.loads(stored) if stored else []

    return writing(bind, work)


def seen_of(bind: Bind, keys: Iterable[str], since: datetime) -> frozenset[str]:
    """Return which of these were seen since then."""
    of_cause = {cause_of(key): key for key in keys}
    causes, recent = list(of_cause), set[str]()
    with reading(bind) as connection:
        for start in range(0, len(causes), AT_ONCE):
            query = select(alerts.c.cause).where(
                alerts.c.cause.in_(causes[start : start + AT_ONCE]), alerts.c.last_seen_at >= since
            )
            recent.update(connection.scalars(query))
    return frozenset(of_cause[cause] for cause in recent)


def first_seen(bind: Bind, keys: Iterable[str]) -> Sequence[datetime]:
    """Times at which causes of these keys were seen first; unknown ones are left out."""
    causes = [cause_of(key) for key in keys]
    with reading(bind) as connection:
        return [
            at
            for start in range(0, len(causes), AT_ONCE)
            for at in connection.scalars(
                select(alerts.c.first_seen_at).where(alerts.c.cause.in_(causes[start : start + AT_ONCE]))
            )
        ]


def seen_since(bind: Bind, key: str, now: datetime, gap: timedelta) -> datetime:
    """Since when something has been seen again and again, without a gap as long as this; people are not notified."""
    cause = cause_of(key)

    def work(connection: Connection) -> datetime:
        where = alerts.c.cause == cause
        row = connection.execute(select(alerts).where(where).with_for_update()).mappings().first()
        if row is None:
            values = {"event": SEEN, "severity": SEEN, "title": key, "text": "", "first_seen_at": now}
            connection.execute(insert(alerts).values(cause=cause, key=key[:512], times=1, last_seen_at=now, **values))
            return now
        first: datetime = row["first_seen_at"] if now - row["last_seen_at"] < gap else now
        connection.execute(
            update(alerts).where(where).values(first_seen_at=first, last_seen_at=now, times=alerts.c.times + 1)
        )
        return first

    return writing(bind, work)
