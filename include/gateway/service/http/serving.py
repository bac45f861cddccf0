"""Everything that the calls of the service share: configuration, keys, leases, commits, figures, and who waits."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from starlette.requests import Request

from include.cvmfs.format.paths import path_and_above
from include.gateway.protocol import BODY_SIGNATURE_HEADER, LeasePath, Offer, body_signature_fits, format_offers
from include.gateway.service.commits.queue import CommitQueue, Committer, OnPoint, pass_by
from include.gateway.service.config import ConfigError, Limiter, ReadConfig, ServiceConfig
from include.gateway.service.http.payloads import Access, Payloads, signature_of
from include.gateway.service.leases.lease_table import LeaseTable, MayUse
from include.gateway.service.requests import Refused
from include.gateway.service.telemetry import Metrics

PATIENCE_S = 60.0
_LONGEST_LIST = 10_000


@dataclass(frozen=True, slots=True)
class Waiter:
    """``since_s`` and ``seen_s``: monotonic, of the first and the last refusal."""

    path: LeasePath
    key_id: str
    hostname: str
    since_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """``position``: 1 for who came first; ``waiting``: how many wait for an overlapping path; times in seconds."""

    waiter: Waiter
    position: int
    waiting: int
    expected_s: float
    waited_s: float


class WaitingList:
    """Safe to use from several threads. ``now_s``: a monotonic clock."""

    def __init__(
        self, now_s: Callable[[], float], longest_s: float, mean_held_s: Callable[[str], float | None]
    ) -> None:
        """``mean_held_s``: how long leases of a repository are held, None if that is not known yet."""
        self._now_s = now_s
        self._longest_s = longest_s
        self._mean_held_s = mean_held_s
        self._waiters: dict[tuple[LeasePath, str, str], Waiter] = {}  # those who were seen last come last
        self._index = _Index()
        self._lock = threading.Lock()

    def refused(self, path: LeasePath, key_id: str, hostname: str, remaining_s: float) -> QueuePlace:
        """Record a caller that found the path busy for at most ``remaining_s``; its place among those who wait."""
        with self._lock:
            self._forget()
            now = self._now_s()
            before = self._waiters.pop((path, key_id, hostname), None)
            waiter = Waiter(path, key_id, hostname, before.since_s if before else now, now)
            if before or len(self._waiters) < _LONGEST_LIST:
                self._waiters[path, key_id, hostname] = waiter
                if before is None:
                    self._index.add(waiter)
            return self._place(waiter, remaining_s, self._index.overlapping(path))

    def granted(self, path: LeasePath, key_id: str, hostname: str) -> None:
        """Forget a waiting caller: it got the lease."""
        with self._lock:
            self._remove((path, key_id, hostname))

    def places(self, remaining_s: Callable[[LeasePath], float]) -> list[QueuePlace]:
        """All who wait, first come first; ``remaining_s`` of the leases in the way of a path."""
        with self._lock:
            self._forget()
            waiters = list(self._waiters.values())
        index = _Index()  # of this moment; those who are refused meanwhile wait for none of what follows
        for waiter in waiters:
            index.add(waiter)
        places: list[QueuePlace] = []
        waiters.sort(key=lambda waiter: (waiter.path.repository, waiter.path.path))
        for path, together in groupby(waiters, key=lambda waiter: waiter.path):
            overlapping, left_s = index.overlapping(path), remaining_s(path)
            places.extend(self._place(waiter, left_s, overlapping) for waiter in together)
        return sorted(places, key=lambda place: place.waiter.since_s)

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._waiters)

    def _place(self, waiter: Waiter, remaining_s: float, overlapping: list[float]) -> QueuePlace:
        before = bisect_left(overlapping, waiter.since_s)
        known_s = self._mean_held_s(waiter.path.repository)
        mean_s = self._longest_s if known_s is None else min(known_s, self._longest_s)
        expected_s = min(remaining_s, mean_s) + before * mean_s
        return QueuePlace(waiter, before + 1, len(overlapping), expected_s, self._now_s() - waiter.since_s)

    def _forget(self) -> None:
        before = self._now_s() - PATIENCE_S
        while self._waiters and next(iter(self._waiters.values())).seen_s < before:
            self._remove(next(iter(self._waiters)))

    def _remove(self, key: tuple[LeasePath, str, str]) -> None:
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            self._index.remove(waiter)


@dataclass
class _Index:
    """Since when each path is waited for. In the order of ``_keys`` all that is below a path follows it."""

    _since: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _keys: list[tuple[str, str]] = field(default_factory=list)

    def add(self, waiter: Waiter) -> None:
        key = waiter.path.repository, waiter.path.path + "/"
        if key not in self._since:
            self._since[key] = []
            insort(self._keys, key)
        insort(self._since[key], waiter.since_s)

    def remove(self, waiter: Waiter) -> None:
        key = waiter.path.repository, waiter.path.path + "/"
        since = self._since[key]
        del since[bisect_left(since, waiter.since_s)]
        if not since:
            del self._since[key]
            del self._keys[bisect_left(self._keys, key)]

    def overlapping(self, path: LeasePath) -> list[float]:
        """Since when those at, above and below the path wait, sorted."""
        above = [(path.repository, directory + "/") for directory in path_and_above(path.path)[1:]]
        first = bisect_left(self._keys, (path.repository, path.path + "/"))
        behind = bisect_left(self._keys, (path.repository, path.path + "0"))  # "0" follows "/" in the order of bytes
        lines = [self._since[key] for key in (*above, *self._keys[first:behind]) if key in self._since]
        return lines[0] if len(lines) == 1 else sorted(since for line in lines for since in line)


log = logging.getLogger(__name__)

OFFERS = format_offers(frozenset(Offer))
"""This service has all of them."""


@dataclass
class ServiceContext:
    """``read_config`` reads the configuration again."""

    config: ServiceConfig
    table: LeaseTable
    committer: Committer
    read_config: ReadConfig
    on_point: OnPoint = pass_by
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.access = Access(self.config)
        self.limiter = Limiter(
            self.config.limits, time.monotonic, lambda limit: self.metrics.limited.labels(limit).inc()
        )
        self.waiting = WaitingList(self.table.now_s, self.config.max_lease_time_s, self.table.mean_held_s)
        self.commits = CommitQueue(
            self.table, self.committer, lambda name: name in self.config.repositories,
            metrics=self.metrics, on_point=self.on_point,
        )  # fmt: skip
        self.payloads = Payloads(self.config, self.signed_by, lambda: self.access, self.table, self.metrics)
        self.metrics.leases.set_function(self.table.held)
        self.metrics.waiting.set_function(lambda: len(self.waiting))

    # -- who may

    def signed_by(self, request: Request, message: bytes) -> str:
        """The id of the key that signed ``message``. Raises Refused, and Malformed for one who asks too much."""
        return self._counted(request, lambda: self.access.authenticate(signature_of(request), message))

    def signed_token(self, request: Request) -> tuple[str, str]:
        """The key and the token of a call on a lease."""
        token: str = request.path_params["token"]
        return self.signed_by(request, token.encode("utf-8", "replace")), token

    def require_signed_body(self, request: Request, key_id: str, token: str, body: bytes) -> None:
        """A signature that covers the body is not needed, but if it is there it must fit. Raises Refused."""
        offered = request.headers.get(BODY_SIGNATURE_HEADER)
        if offered is not None and not body_signature_fits(offered, self.access.secret(key_id), token, body):
            self.limiter.refused(_host(request))
            raise Refused("invalid_hmac", f"{BODY_SIGNATURE_HEADER} does not fit the body")

    def admin(self, request: Request, message: bytes, repository: str = "") -> str:
        """The id of the admin key that signed ``message``; without a repository, of one of the gateway's own."""
        return self._counted(
            request, lambda: self.access.authenticate_admin(signature_of(request), message, repository)
        )

    def _counted(self, request: Request, authenticate: Callable[[], str]) -> str:
        try:
            key_id = authenticate()
        except Refused:
            self.limiter.refused(_host(request))
            raise
        self.limiter.signed(key_id)
        return key_id

    def may_use(self, key_id: str) -> MayUse:
        """Return a test of a lease: whether ``key_id`` may act on it."""
        return lambda lease: key_id == lease.key_id or self.access.is_admin(key_id, lease.repository)

    # -- configuration

    def reload(self) -> list[str]:
        """Serve the configuration as it is now; the names of the repositories.

        Raises ConfigError, and goes on with the old one, if the new one cannot be served without a restart.
        """
        try:
            new = self.read_config()
        except Exception as error:
            raise ConfigError(f"it cannot be read: {error}") from error
        for name in ("state", "host", "port", "max_lease_time_s"):
            if getattr(new, name) != getattr(self.config, name):
                raise ConfigError(f"{name} was changed, and that needs a restart of the gateway")
        access = Access(new)
        self.committer.reconfigure(new)
        self.config, self.access = new, access
        self.payloads.reconfigure(new)
        log.info("configuration read again", extra={"fields": {"repositories": sorted(new.repositories)}})
        log_not_served(new)
        return sorted(new.repositories)


def log_not_served(config: ServiceConfig) -> None:
    """A line for each repository of the site that is not served here."""
    for name, reason in sorted(config.not_served.items()):
        log.warning("repository not served", extra={"fields": {"repository": name, "reason": reason}})


def _host(request: Request) -> str:
    return request.client.host if request.client else "unknown"
