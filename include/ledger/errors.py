"""What can go wrong between Nightshift and its ledger. No message carries a password.

LedgerError
├── BadLedgerUrl         the URL is not one of a ledger
├── LedgerUnavailable    cannot be reached, is locked or ended a transaction (may be tried again)
└── LedgerVersion        its tables are of a version that this code does not know
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


class BadLedgerUrl(LedgerError):
    code = "ledger-url-invalid"

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            f"ledger {url}: {what}. Use sqlite:///path/ledger.db or mysql+pymysql://login@host:port/database.", url=url
        )


class LedgerUnavailable(LedgerError):
    code = "ledger-unavailable"
    retryable = True

    def __init__(self, url: str, what: str) -> None:
        super().__init__(f"ledger {url}: {what}. Check that its server runs and that its connection is right.", url=url)


class LedgerVersion(LedgerError):
    code = "ledger-version-unknown"

    def __init__(self, url: str, found: str, known: str) -> None:
        self.found = found
        super().__init__(
            f"ledger {url}: its tables have version {found}, this code knows up to {known}. "
            "Install the newer Nightshift that made them, or name another ledger.",
            url=url,
        )
