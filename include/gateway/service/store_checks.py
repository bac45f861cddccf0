"""Checks the stores of the repositories: a store that does not answer delays only those who ask about it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

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
