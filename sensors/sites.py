"""Wait until storage sites are used again; the waiting is done by the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sensors.base import WaitSensor


class SiteHealthSensor(WaitSensor):
    """Succeeds when none of the sites has failed or is held. Returns the state of each.

    Args:
        sites: Names in the site configuration; empty: all.
        timeout: Seconds to wait before the task fails.
        **kwargs: `poke_interval`, `deferrable`, and those of every sensor.
    """

    template_fields = ("sites",)
    check = "sites-usable"

    def __init__(self, *, sites: Sequence[str] | str = (), timeout: float = 6 * 3600.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.sites = sites

    def arguments(self) -> dict[str, Any]:
        return {"sites": [self.sites] if isinstance(self.sites, str) and self.sites else [*self.sites]}
