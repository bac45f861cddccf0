"""The site as it is configured while a trigger watches: hours pass, and the configuration may be edited meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from include.publishers.connect import Connections


def configured(slot: str) -> Callable[[], Connections]:
    """Clients of the site, new ones whenever the configuration differs; to be called in threads.

    What is returned raises SettingsError once the slot is not configured, and what reading the configuration raises.
    """
    from hooks.secrets import KnownSecrets
    from include.publishers.connect import Connections
    from include.settings.load import load

    loop = asyncio.get_running_loop()
    known: Connections | None = None

    def connect() -> Connections:
        nonlocal known
        site = load()
        site.slot(slot)
        if known is None or site != known.site:
            known = Connections(site, KnownSecrets(loop))
        return known

    return connect
