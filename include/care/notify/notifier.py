"""Notifies people: once of each cause within a window, by every configured way, and without failing the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Protocol

from sqlalchemy import Engine

from include.care.notify import records
from include.care.notify.chat import send_chat
from include.care.notify.errors import NotifyError
from include.care.notify.mail import send_mail
from include.care.notify.message import Message
from include.care.notify.webhook import post
from include.ledger.errors import LedgerError
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.notify import Notify
from include.settings.secrets import Secrets

log = logging.getLogger(__name__)


class NotifySite(Protocol):
    """Settings, secrets and ledger of a site."""

    settings: SiteSettings
    secrets: Secrets

    @property
    def ledger(self) -> Engine: ...


class Said(Enum):
    """What became of a message."""

    TOLD = "notified"
    KNOWN = "already notified"
    NOBODY = "no way is configured"
    FAILED = "could not be sent"


@dataclass(frozen=True, slots=True)
class Notifier:
    """`ways`: how people are notified, by name; each raises NotifyError or SettingsError if it does not work."""

    settings: Notify
    ledger: Engine
    ways: dict[str, Callable[[Message, datetime], None]] = field(default_factory=dict)

    @classmethod
    def of(cls, site: NotifySite) -> Notifier:
        """By what `notify:` of the configuration names."""
        settings, secrets = site.settings.notify, site.secrets
        ways: dict[str, Callable[[Message, datetime], None]] = {}
        if (mail := settings.mail) is not None:
            ways["mail"] = lambda message, _: send_mail(mail, secrets.get(mail.connection), message)
        if (hook := settings.webhook) is not None:
            ways["webhook"] = lambda message, now: post(
                hook, secrets.get(hook.connection), message, now_s=int(now.timestamp())
            )
        if (chat := settings.apprise) is not None:
            for name in chat.connections:
                ways[f"apprise {name}"] = partial(_by_chat, secrets, name, chat.timeout_s)
        return cls(settings, site.ledger, ways)

    def tell(self, message: Message, *, now: datetime, window: timedelta | None = None) -> Said:
        """Notify people of a cause, unless they were notified of it within the window. Raises nothing.

        A way that fails stops no other. If all fail or none is configured, the next process that sees the cause tries
        again.
        """
        window = timedelta(hours=self.settings.window_hours) if window is None else window
        try:
            if not records.claim(self.ledger, message, now=now, window=window):
                return Said.KNOWN
        except LedgerError as error:
            log.warning("not known whether it was sent already, so it is sent again: %s", error)
        log.warning("%s: %s", message.event.value, message.title)
        faults = {name: fault for name, fault in self.send(message, now=now).items() if fault is not None}
        if len(faults) < len(self.ways):
            return Said.TOLD
        try:
            records.not_told(self.ledger, message, "; ".join(faults.values()) or None)
        except LedgerError as error:
            log.warning("not recorded: %s", error)
        return Said.FAILED if self.ways else Said.NOBODY

    def send(self, message: Message, *, now: datetime) -> dict[str, str | None]:
        """Send a message by each way, also if people were notified of its cause. Raises nothing.

        Returns:
            By the name of each way, the reason why it failed; None: the message was sent.
        """
        faults: dict[str, str | None] = {}
        for name, way in self.ways.items():
            try:
                way(message, now)
                faults[name] = None
            except (NotifyError, SettingsError) as error:
                faults[name] = str(error)
                log.error("not sent by %s: %s", name, error)
        return faults


def _by_chat(secrets: Secrets, connection: str, timeout_s: float, message: Message, _: datetime) -> None:
    send_chat(secrets.get(connection), message, timeout_s=timeout_s)
