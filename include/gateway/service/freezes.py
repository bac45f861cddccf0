"""Frozen repositories give out no new lease (docs/decisions, "A freeze is an object of the store").

Leases that were granted before may be used: each lasts for moments, and what it protects is half done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from include.cvmfs.coordination.freeze import Freeze, look
from include.cvmfs.errors import RepositoryFrozen
from include.gateway.duration import SECOND
from include.gateway.service.clock import Clock
from include.gateway.service.config import ServiceConfig
from include.gateway.service.requests import Refused
from include.gateway.service.store_checks import StoreCheckCache

log = logging.getLogger(__name__)

FRESH_S = 1.0
"""How old what is known of a freeze may be: many acquires at once are one read of the store."""


class Freezes:
    """The freezes that the repositories' stores hold. ``config``: the configuration in force."""

    def __init__(self, config: Callable[[], ServiceConfig], clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._known: dict[str, tuple[int, Freeze | None]] = {}
        self._looks: StoreCheckCache[None] = StoreCheckCache()

    async def require_thawed(self, name: str) -> None:
        """Raises Refused for a repository that is frozen.

        While the store does not answer, what was known last holds: a commit could not pass then anyhow, and
        publishers look for themselves.
        """
        asked_ns, _ = self._known.get(name, (None, None))
        if asked_ns is None or self._clock.monotonic_ns() - asked_ns >= FRESH_S * SECOND:
            try:
                await self._looks.look(name, lambda: self._look(name))
            except TimeoutError:
                _unknown(name, "the store does not answer in time")
        _, found = self._known.get(name, (None, None))
        if found is not None and found.holds(self._now()):
            raise Refused("repo_disabled", RepositoryFrozen(name, str(found)).detail)

    def _look(self, name: str) -> None:
        repository = self._config().repositories.get(name)
        _, found = self._known.get(name, (None, None))
        try:
            found = look(repository.quick(), self._now()) if repository is not None else None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the store, leases are given out as before
            _unknown(name, str(error))
        self._known[name] = (self._clock.monotonic_ns(), found)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)


def _unknown(name: str, detail: str) -> None:
    fields = {"repository": name, "detail": detail}
    log.warning("whether it is frozen is not known, what was last known holds", extra={"fields": fields})
