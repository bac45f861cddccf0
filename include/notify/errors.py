"""What can go wrong while people are told something. No message carries a secret, nor the URL of a webhook.

NotifyError
├── MailFailed(server, detail)      the mail server did not take it          (retryable)
└── WebhookFailed(host, detail)     the service did not take it              (retryable)
"""

from __future__ import annotations

from include.errors import NightshiftError


class NotifyError(NightshiftError):
    """Base of everything in this file."""

    code = "notification-error"
    retryable = True


class MailFailed(NotifyError):
    code = "mail-failed"

    def __init__(self, server: str, detail: str) -> None:
        super().__init__(f"mail server {server}: {detail}. Check the connection of `notify.mail`.")


class WebhookFailed(NotifyError):
    code = "webhook-failed"

    def __init__(self, host: str, detail: str) -> None:
        super().__init__(f"webhook at {host}: {detail}. Check the connection of `notify.webhook`.")
