"""Questions to the stores of repositories, of which a silent one delays only those who ask about it; and freezes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Generic, TypeVar

from include.cvmfs.coordination.freeze import Freeze, look
from include.cvmfs.errors import RepositoryFrozen
from include.gateway.protocol import SECOND
from include.gateway.service.clock import Clock
from include.gateway.service.config import ServiceConfig
from include.gateway.service.requests import Refused

T = TypeVar("T")

PATIENCE_S = 5.0


class StoreCheckCache(Generic[T]):
    """At most one look for each repository at a time, in a thread of its own, which nothing waits for at the end."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[float, asyncio.Future[T]]] = {}

    async def look(self, name: str, function: Callable[[], T]) -> T:
        """Return what ``function`` returns or raises; that of the look which is under way, if there is one.

        Raises TimeoutError once the look has taken longer than the patience, and at once while such a one goes on.
        """
        if name not in self._running:
            self._running[name] = time.monotonic(), self._started(name, function)
        since, result = self._running[name]
        left_s = since + PATIENCE_S - time.monotonic()
        return await asyncio.wait_for(asyncio.shield(result), max(0.0, left_s))

    def _started(self, name: str, function: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(outcome: T | None, problem: Exception | None) -> None:
            del self._running[name]
            if problem is None:
                result.set_result(outcome)  # type: ignore[arg-type]
            else:
                result.set_exception(problem)
                result.exception()  # those who asked may have gone

        def run() -> None:
            outcome, problem = None, None
            try:
                outcome = context.run(function)
            except Exception as error:  # noqa: BLE001 - raised to those who asked
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
                loop.call_soon_threadsafe(settle, outcome, problem)

        threading.Thread(target=run, name=f"gateway-look-{name}", daemon=True).start()
        return result


log = logging.getLogger(__name__)

FRESH_S = 1.0
"""Seconds for which an answer about a freeze is used: many acquires at once are one read of the store."""


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
        _, freeze = self._known.get(name, (None, None))
        if freeze is not None and freeze.holds(self._now()):
            raise Refused("repo_disabled", RepositoryFrozen(name, str(freeze)).detail)

    def _look(self, name: str) -> None:
        repository = self._config().repositories.get(name)
        _, freeze = self._known.get(name, (None, None))
        try:
            freeze = look(repository.quick(), self._now()) if repository is not None else None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the store, leases are given out as before
            _unknown(name, str(error))
        self._known[name] = (self._clock.monotonic_ns(), freeze)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)


def _unknown(name: str, detail: str) -> None:
    fields = {"repository": name, "detail": detail}
    log.warning("cannot read the freeze; using the last known state", extra={"fields": fields})
