"""How much one caller may ask for: token buckets by key and by address, and an answer with the time to try again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from include.gateway.service.requests import Malformed

_CALLERS = 10_000  # buckets that are remembered; a forgotten caller begins with a full one


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s`` calls a second in the long run, ``burst`` at once."""

    per_s: float
    burst: float


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Generous by default: they stop what runs wild, not who works. ``refused`` counts bad signatures by address.

    ``connections``: at the same time, and never more than three quarters of the process's file descriptors; ``head_s``:
    until the head of a request has to be complete.
    """

    per_remote: Rate = Rate(4000, 8000)
    per_key: Rate = Rate(4000, 8000)
    refused: Rate = Rate(20, 200)
    leases_per_key: int = 20_000
    header_bytes: int = 32 << 10
    connections: int = 4096
    head_s: float = 20.0


class Buckets:
    """One bucket per caller, of one rate. ``now_s``: a monotonic clock."""

    def __init__(self, rate: Rate, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._now_s = now_s
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """0 if the caller may go on, else in how many seconds. Takes nothing."""
        level = self._level(caller)
        return 0.0 if level >= 1 else (1 - level) / self._rate.per_s

    def take(self, caller: str) -> None:
        self._levels[caller] = (self._level(caller) - 1, self._now_s())
        self._levels.move_to_end(caller)
        if len(self._levels) > _CALLERS:
            self._levels.popitem(last=False)

    def _level(self, caller: str) -> float:
        level, at = self._levels.get(caller, (self._rate.burst, self._now_s()))
        return min(self._rate.burst, level + (self._now_s() - at) * self._rate.per_s)


class Limiter:
    """Checked at every request. ``on_limit`` is called with the name of the limit that refused one."""

    def __init__(self, limits: RateLimits, now_s: Callable[[], float], on_limit: Callable[[str], None]) -> None:
        self._remotes = Buckets(limits.per_remote, now_s)
        self._keys = Buckets(limits.per_key, now_s)
        self._refused = Buckets(limits.refused, now_s)
        self._on_limit = on_limit

    def request(self, remote: str) -> None:
        """Raises Malformed (429)."""
        self._require("remote", self._remotes, remote)
        self._remotes.take(remote)
        self._require("refused", self._refused, remote)

    def signed(self, key_id: str) -> None:
        """A call whose signature fits. Raises Malformed (429)."""
        self._require("key", self._keys, key_id)
        self._keys.take(key_id)

    def refused(self, remote: str) -> None:
        """A call whose signature does not fit."""
        self._refused.take(remote)

    def _require(self, limit: str, buckets: Buckets, caller: str) -> None:
        wait_s = buckets.wait_s(caller)
        if wait_s > 0:
            self._on_limit(limit)
            raise Malformed(429, "too many requests", headers={"Retry-After": str(math.ceil(wait_s))})
