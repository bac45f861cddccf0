"""The site as it is configured while a trigger watches: hours pass, and the configuration may be edited meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from include.site.site import Site


def configured(slot: str) -> Callable[[], Site]:
    """Clients of the site, new ones whenever the configuration differs; to be called in threads.

    What is returned raises SettingsError once the slot is not configured, and what reading the configuration raises.
    """
    from hooks.secrets import KnownSecrets
    from include.settings.load import load
    from include.site.site import Site

    loop = asyncio.get_running_loop()
    known: Site | None = None

    def connect() -> Site:
        nonlocal known
        settings = load()
        settings.slot(slot)
        if known is None or settings != known.settings:
            known = Site(settings, KnownSecrets(loop))
        return known

    return connect
