"""The site as it is configured while a trigger watches: hours pass, and somebody edits the configuration meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hooks.secrets import KnownSecrets
    from include.publishers.connect import Connections
    from include.settings.model import Site


async def configured(slot: str) -> Callable[[], Connections]:
    """Clients for the slot's builds and the ledger, anew whenever the configuration differs; called in threads.

    Connections are looked up here and then by the event loop, which a look-up must not block. What is returned raises
    as this does: SettingsError once the slot is not configured, MissingConnection, BadConnection, InvalidSettings.
    """
    from include.publishers.connect import Connections
    from include.settings.load import load

    loop = asyncio.get_running_loop()
    site = await asyncio.to_thread(load)
    known = Connections(site, await _secrets(site, slot))

    def connect() -> Connections:
        nonlocal known
        now = load()
        if now != known.site:
            known = Connections(now, asyncio.run_coroutine_threadsafe(_secrets(now, slot), loop).result())
        return known

    return connect


async def _secrets(site: Site, slot: str) -> KnownSecrets:
    from hooks.secrets import KnownSecrets

    return await KnownSecrets.of([site.store(site.slot(slot).store).connection, site.ledger_connection])
