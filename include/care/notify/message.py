"""What people are notified of: one message for one cause, with its hint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class NotifyEvent(Enum):
    """What happened."""

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
    TEST = "test"
    """`nightshift notify test`."""


@dataclass(frozen=True, slots=True)
class Message:
    """`key` names the cause: the same cause has the same key, however it is worded. `severity`: error, warning or ok.

    `code`: of the error, if there is one.
    `links` maps names to URLs. `html`: the same text for those who read mail in colours.
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

    def to_json(self) -> dict[str, Any]:
        """What a webhook is sent (docs/formats.md, notifications)."""
        return {
            "format": 1,
            "event": self.event.value,
            "severity": self.severity,
            "key": self.key,
            "title": self.title,
            "text": self.text,
            "cure": self.cure,
            "links": dict(self.links),
            **({"code": self.code} if self.code else {}),
        }

    def plain(self) -> str:
        """All of it as lines."""
        links = [f"{name}: {url}" for name, url in self.links.items()]
        parts = [self.text, f"What to do: {self.cure}" if self.cure else "", "\n".join(links)]
        return "\n\n".join(part for part in parts if part) + "\n"
