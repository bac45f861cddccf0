"""Configuration of the gateway service: where to listen, its state, repositories, keys, and limits of a caller."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from include.errors import NightshiftError
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import checked_path
from include.gateway.service.requests import Malformed

if TYPE_CHECKING:
    from include.cvmfs.format.keys import Signer
    from include.storage.store import Store

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
    """Buckets of one rate, one per caller. ``now_s``: a monotonic clock."""

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


class ConfigError(NightshiftError, ValueError):
    """The configuration cannot be served; the message names the entry and has the hint."""

    code = "gateway-configuration-invalid"


@dataclass(frozen=True, slots=True)
class AcceptedKey:
    """A key that may take leases at or below ``path``; an admin key may also end the leases of others."""

    id: str
    secret: str = field(repr=False)
    path: str = "/"
    admin: bool = False

    def __post_init__(self) -> None:
        if any(word.split() != [word] for word in (self.id, self.secret)):
            raise ConfigError(f"gateway key {self.id!r}: id and secret must be words without blanks")
        try:
            object.__setattr__(self, "path", checked_path(self.path) or "/")
        except BadLeasePath as error:
            raise ConfigError(f"gateway key {self.id!r}: {error}; write its path as /some/path") from None


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """A repository; its store and its signing key are opened at the first commit.

    ``public_keys``: PEM texts of master keys, for manifests that another key than ours has signed. ``quick_store``: the
    store with short time-outs and without repetitions; None: there is no such one.
    """

    store: Callable[[], Store] = field(repr=False)
    signer: Callable[[], Signer] = field(repr=False)
    keys: tuple[AcceptedKey, ...] = ()
    public_keys: Callable[[], Sequence[bytes]] = field(default=tuple, repr=False)
    quick_store: Callable[[], Store] | None = field(default=None, repr=False)

    def quick(self) -> Store:
        """The store for a quick check: it fails rather than waits."""
        return (self.quick_store or self.store)()


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """``keys`` belong to the gateway and to no repository: with ``admin`` they may end leases, but never take one.

    Of the payloads of a repository, ``payloads_at_once`` are read and the others wait; one that sends nothing for the
    idle timeout is refused. ``not_served``: other repositories of the site, and why. ``certificate``: the PEM file with
    which it speaks https. ``insecure``: it may listen on other addresses than loopback without one.
    """

    state: Path
    repositories: Mapping[str, RepositoryConfig]
    host: str = "127.0.0.1"
    port: int = 4929
    certificate: Path | None = None
    private_key: Path | None = None
    insecure: bool = False
    max_lease_time_s: float = 7200.0
    keys: tuple[AcceptedKey, ...] = ()
    stop_timeout_s: float = 30.0
    max_payload_bytes: int = 4 << 30
    payloads_at_once: int = 8
    payload_idle_timeout_s: float = 60.0
    limits: RateLimits = field(default_factory=RateLimits)
    not_served: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.max_lease_time_s <= 30 * 86400:
            raise ConfigError(f"max_lease_time_s is {self.max_lease_time_s}: give seconds between 0 and 30 days")
        if not 1 << 10 <= self.max_payload_bytes < 1 << 50:
            raise ConfigError(f"max_payload_bytes is {self.max_payload_bytes}: give bytes between 1 KiB and 1 PiB")
        if not 1 <= self.payloads_at_once <= 256:
            raise ConfigError(f"payloads_at_once is {self.payloads_at_once}: give a number between 1 and 256")
        if not 0 < self.payload_idle_timeout_s <= 3600:
            raise ConfigError(
                f"payload_idle_timeout_s is {self.payload_idle_timeout_s}: give seconds, more than 0, at most an hour"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}: give one between 0 (any free port) and 65535")
        secrets: dict[str, str] = {}
        for key in self.all_keys():
            if secrets.setdefault(key.id, key.secret) != key.secret:
                raise ConfigError(f"gateway key {key.id!r} has two secrets: give each key its own id")
        for name in self.repositories:
            if not name or "/" in name:
                raise ConfigError(f"repository {name!r}: a fully qualified name without slash is needed")

    def all_keys(self) -> list[AcceptedKey]:
        return [*self.keys, *(key for repository in self.repositories.values() for key in repository.keys)]


ReadConfig = Callable[[], ServiceConfig]
"""Reads the configuration as it is now; it can be pickled, since the process that commits calls it, too."""
