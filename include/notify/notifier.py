"""Notifies people: once of each cause within a window, by every service of Apprise, and without failing the caller.

Apprise: https://appriseit.com/services/.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Engine

from include.errors import NightshiftError
from include.ledger.errors import LedgerError
from include.notify import records
from include.notify.message import Message
from include.settings.errors import BadConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets, Secrets, connection_variable
from include.settings.services import Notify

if TYPE_CHECKING:
    from apprise import Apprise

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
            if not records.claim(self.ledger, message, now=now, window=window):
                return DeliveryOutcome.KNOWN
        except LedgerError as error:
            log.warning("not known whether it was sent already, so it is sent again: %s", error)
        log.warning("%s: %s", message.event.value, message.title)
        faults = {name: fault for name, fault in self.send(message).items() if fault is not None}
        if len(faults) < len(self.ways):
            return DeliveryOutcome.TOLD
        try:
            records.not_told(self.ledger, message, "; ".join(faults.values()) or None)
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
