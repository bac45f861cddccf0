"""Errors between Nightshift and its ledger. No message carries a password.

LedgerError
└── LedgerUnavailable    cannot be reached, is locked or ended a transaction (may be tried again)
"""

from __future__ import annotations

from include.errors import Concern, NightshiftError


class LedgerError(NightshiftError):
    """Base of everything in this file; `url` is the ledger's, with its password hidden."""

    code = "ledger-error"
    concern = Concern.CONFIGURATION

    def __init__(self, message: str, *, url: str) -> None:
        self.url = url
        super().__init__(message)


class LedgerUnavailable(LedgerError):
    code = "ledger-unavailable"
    retryable = True

    def __init__(self, url: str, what: str) -> None:
        super().__init__(f"ledger {url}: {what}. Check that its server runs and that its connection is right.", url=url)
