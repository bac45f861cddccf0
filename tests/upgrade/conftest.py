"""The server of ledgers, as the tests of the ledger have it."""

from __future__ import annotations

from tests.integration.ledger.conftest import mariadb

__all__ = ["mariadb"]
