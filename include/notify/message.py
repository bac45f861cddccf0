"""Messages to people: one for one cause, with its hint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


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
