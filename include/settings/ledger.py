"""Opens the ledger of a configuration, its tables up to date."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Engine

from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets, ledger_address


def open_site_ledger(settings: SiteSettings, secrets: Secrets, environ: Mapping[str, str] | None = None) -> Engine:
    """The ledger in force, migrated; raises the errors of `include.ledger`, MissingConnection or BadConnection."""
    engine = open_ledger(ledger_address(settings, secrets, environ))
    migrate(engine)
    return engine
