"""What can go wrong while people are notified. No message carries a secret, nor the URL of a webhook."""

from __future__ import annotations

from include.errors import NightshiftError


class NotifyError(NightshiftError):
    """The mail server or the service behind a webhook did not take a message."""

    code = "notification-error"
    retryable = True
