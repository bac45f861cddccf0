"""Limits of one user of the REST API: calls a second, and bytes of a body."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from starlette.requests import Request

from include.stageout.rest.questions import BODY_INVALID, BODY_TOO_LARGE, TOO_MANY_CALLS

CALLS_PER_S, BURST = 10.0, 60.0
"""Calls of one user, in each process of the API server: for long, and at once after a rest."""
MOST_BYTES = 8 << 20
"""Of a body: 10,000 files with names of 300 characters are 7 MB."""
_MOST_USERS = 10_000


class UserCalls:
    """A token bucket for each user: a call takes one token, and they come back at a constant rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, user: str) -> None:
        """Take a token of the user. Raises StageoutError, TOO_MANY_CALLS, if there is none."""
        with self._lock:
            now = self._clock()
            if len(self._left) >= _MOST_USERS:
                self._forget(now)
            tokens, at = self._left.get(user, (BURST, now))
            tokens = min(BURST, tokens + (now - at) * CALLS_PER_S)
            self._left[user] = (max(tokens - 1, 0.0) if tokens >= 1 else tokens, now)
        if tokens < 1:
            raise TOO_MANY_CALLS(f"user {user}", f"more than {CALLS_PER_S:.0f} calls a second")

    def _forget(self, now: float) -> None:
        """Users whose buckets are full by now are as new ones."""
        rest = BURST / CALLS_PER_S
        self._left = {user: (tokens, at) for user, (tokens, at) in self._left.items() if now - at < rest}


def require_json(request: Request) -> None:
    """Refuse a call that changes something and has not the content type of JSON, even if its body is empty.

    Pages of other sites can send other types with the cookie of a login; for JSON the browser asks us first. Raises
    StageoutError: BODY_INVALID.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise BODY_INVALID("the body", "its content type is not application/json")


async def bounded_body(request: Request) -> bytes:
    """The body of a request; a larger one than the limit is not read to its end.

    Raises StageoutError: BODY_TOO_LARGE.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise BODY_TOO_LARGE("the body", f"it is larger than {MOST_BYTES} bytes")
    return bytes(body)
