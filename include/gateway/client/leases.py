"""Values of a gateway's answers; and leases at hand: how long each still lasts, who renews it in time, how it ends.

Times of a lease are seconds on the monotonic clock, counted from before a request was sent, so that no deadline here is
later than the gateway's own.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from include.gateway.errors import SEALED_LEASE_UNREADABLE, GatewayError, LeaseLost, NotOffered
from include.gateway.protocol import LeasePath, parse_time

_USE = b"nightshift sealed lease 1"


def seal(lease: Lease, secret: str, *, now: datetime) -> dict[str, Any]:
    """The lease as JSON. ``now`` (with zone) and the lease's own clock give its end, if the gateway reported it."""
    left_s = None if lease.expires_monotonic is None else lease.expires_monotonic - time.monotonic()
    expires = None if left_s is None else (now + timedelta(seconds=left_s)).isoformat(timespec="seconds")
    body = json.dumps(asdict(replace(lease, expires_monotonic=None))).encode()
    return {
        "repository": lease.repository,
        "path": lease.path,
        "holder": lease.hostname,
        "expires": expires,
        "sealed": _box(secret).encrypt(body).decode(),
    }


def unseal(value: Mapping[str, Any], secret: str, *, now: datetime) -> Lease:
    """Return what ``seal`` made, by the same secret. Raises SEALED_LEASE_UNREADABLE."""
    try:
        lease = Lease(**json.loads(_box(secret).decrypt(str(value["sealed"]).encode())))
        if value["expires"] is None:
            return lease
        left_s = (datetime.fromisoformat(value["expires"]) - now).total_seconds()
    except (InvalidToken, KeyError, TypeError, ValueError):
        where = LeasePath(str(value.get("repository", "")), str(value.get("path", "")))
        what = f"the lease on {where} that an earlier task took cannot be read"
        raise SEALED_LEASE_UNREADABLE(f"{what}; {SEALED_LEASE_UNREADABLE.hint}") from None
    return replace(lease, expires_monotonic=time.monotonic() + left_s)


def _box(secret: str) -> Fernet:
    key = HKDF(SHA256(), 32, salt=None, info=_USE).derive(secret.encode())
    return Fernet(base64.urlsafe_b64encode(key))


@dataclass(frozen=True, slots=True)
class RepositoryInfo:
    """``keys`` maps the ids of the keys to the paths that they may lease."""

    name: str
    keys: Mapping[str, str]
    enabled: bool

    @classmethod
    def parse(cls, name: str, value: Mapping[str, Any]) -> RepositoryInfo:
        """Raises ValueError, KeyError or TypeError for another shape."""
        return cls(name, {str(key): str(path) for key, path in dict(value["keys"]).items()}, bool(value["enabled"]))


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as the gateway lists it; ``path`` is ``""`` for the whole repository. It holds no token."""

    repository: str
    path: str
    key_id: str
    expires: datetime
    hostname: str

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> LeaseInfo:
        """Raises ValueError, KeyError or TypeError for another shape. Paths are taken as they are listed."""
        repository, _, rest = str(value["path"]).partition("/")
        path = f"/{rest}".rstrip("/")
        return cls(repository, path, str(value["key_id"]), parse_time(value["expires"]), str(value.get("hostname", "")))

    @property
    def full_path(self) -> str:
        return self.repository + (self.path or "/")


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to change ``path``. The token is the right itself: it is in no repr, and must get into no log.

    ``expires_monotonic``: seconds on ``time.monotonic`` until which it lasts, ``lifetime_s``: how long that was when it
    was given, ``epoch``: the fence of its repository; each ``None`` if the gateway did not report it.
    """

    token: str = field(repr=False)
    repository: str
    path: str
    hostname: str
    key_id: str
    max_api_version: int = 2
    expires_monotonic: float | None = None
    lifetime_s: float | None = None
    epoch: int | None = None

    @property
    def full_path(self) -> str:
        return str(LeasePath(self.repository, self.path))


log = logging.getLogger(__name__)

ENDS_KNOWN = 4096
RENEW_AT = 1 / 3
"""Share of its lifetime after which a lease is renewed: two renewals may fail before it ends."""
SHORTEST_PAUSE_S = 0.05
MOST_RENEWALS = 30
"""Limit for a lease: a holder that hangs, or outlives the task that it was, does not keep others out for ever."""


LOGGER = "nightshift.leases"


class LeaseEvent(Enum):
    """Event of a lease. All but the first two are an end: the last line of a lease is one of these."""

    ACQUIRED = "lease acquired"
    RENEWED = "lease renewed"
    COMMITTED = "lease committed"
    DROPPED = "lease dropped"
    EXPIRED = "lease expired"
    ABANDONED = "lease abandoned"
    """It could not be given back, and ends by expiry."""


def record(event: LeaseEvent, lease: Lease, *, held_s: float, outcome: str, trace: str | None) -> None:
    """Write the line. ``held_s``: seconds since the lease was granted; ``trace``: the gateway's id of the call."""
    fields: dict[str, object] = {
        "repository": lease.repository,
        "path": lease.path or "/",
        "holder": lease.hostname,
        "key": lease.key_id,
        "held_s": round(held_s, 3),
        "outcome": outcome,
        **({"epoch": lease.epoch} if lease.epoch is not None else {}),
        **({"trace": trace} if trace else {}),
    }
    text = " ".join(f"{name}={value!r}" for name, value in fields.items())
    logging.getLogger(LOGGER).info("%s: %s", event.value, text, extra={"event": event.name.lower(), "fields": fields})


@dataclass(slots=True)
class Held:
    """A lease that was granted to us and has not ended as far as we know."""

    lease: Lease
    since: float
    since_renewal: float
    trace: str | None = None
    renewals: int = 0
    lost: LeaseLost | None = None
    trouble: str = ""
    """The last line of the lease in the log has it."""
    committing: bool = False

    @property
    def lifetime_s(self) -> float | None:
        """From the grant or the last renewal until it ends; None if the gateway did not report it."""
        ends = self.lease.expires_monotonic
        return None if ends is None else ends - self.since_renewal

    def left_s(self, now: float) -> float | None:
        """Return how long it still lasts; None if the gateway did not report it."""
        ends = self.lease.expires_monotonic
        return None if ends is None else ends - now


class Holdings:
    """The leases of one client, by token. Safe to share between threads; every lease has one end in the audit log."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lifetime_s: float | None = None
        self._lock = threading.Lock()

    def granted(self, lease: Lease, *, sent_at: float, trace: str | None) -> None:
        with self._lock:
            self._held[lease.token] = Held(lease, sent_at, sent_at, trace)
        record(LeaseEvent.ACQUIRED, lease, held_s=0.0, outcome="granted", trace=trace)

    def adopted(self, lease: Lease) -> None:
        """Keep, for a while, a lease that another process took and handed over."""
        with self._lock:
            self._held[lease.token] = Held(lease, now := time.monotonic(), now)

    def known(self, lease: Lease) -> Held | None:
        """Return what is known of a lease that this client took and that has not ended."""
        with self._lock:
            return self._held.get(lease.token)

    def with_deadline(self, lease: Lease, ask_left_s: Callable[[Lease], float | None]) -> Lease:
        """The lease with its deadline. A stock gateway names it only if asked; what its leases last is asked once."""
        if lease.expires_monotonic is not None:
            return lease
        held = self.known(lease)
        if self._lifetime_s is None:
            asked_at = time.monotonic()
            left_s = ask_left_s(lease)
            if left_s is None:
                return lease
            self._lifetime_s = asked_at + left_s - (held.since if held else asked_at)
        return self.timed(lease, (held.since if held else time.monotonic()) + self._lifetime_s)

    def timed(self, lease: Lease, ends: float) -> Lease:
        """The lease, with a deadline that was asked for after it was granted."""
        timed = replace(lease, expires_monotonic=ends)
        with self._lock:
            if (held := self._held.get(lease.token)) is not None:
                held.lease = timed
        return timed

    def left_s(self, lease: Lease) -> tuple[float | None, float | None]:
        """Return what is left of a lease, and its whole lifetime; each None if unknown."""
        held, now = self.known(lease), time.monotonic()
        if held is None:
            ends = lease.expires_monotonic
            return (None if ends is None else ends - now), lease.lifetime_s
        return held.left_s(now), held.lifetime_s

    def later(self, sent_at: float) -> float | None:
        """A deadline after a renewal by a gateway that reports it only by its own clock."""
        return None if self._lifetime_s is None else sent_at + self._lifetime_s

    def renewed(self, lease: Lease, *, sent_at: float, trace: str | None) -> None:
        with self._lock:
            held = self._held.get(lease.token)
            if held is None:
                return
            held.lease, held.since_renewal, held.renewals = lease, sent_at, held.renewals + 1
            held_s, number = sent_at - held.since, held.renewals
        record(LeaseEvent.RENEWED, lease, held_s=held_s, outcome=f"renewal {number}", trace=trace)

    def note(self, lease: Lease, **facts: LeaseLost | str | bool) -> None:
        """Keep fields of ``Held``: the renewal that found it lost, a commit that runs, or failed."""
        with self._lock:
            if (held := self._held.get(lease.token)) is not None:
                for name, value in facts.items():
                    setattr(held, name, value)

    def may_be_renewed(self, lease: Lease) -> bool:
        """Not while a commit runs: how long its reply takes is unknown, and a lease must not last that long."""
        held = self.known(lease)
        return held is not None and not held.committing

    def ended(self, lease: Lease, event: LeaseEvent, outcome: str, *, trace: str | None = None) -> None:
        """Write the last line of a lease, unless it has one."""
        with self._lock:
            if lease.token in self._ended:
                return
            self._ended[lease.token] = None
            while len(self._ended) > ENDS_KNOWN:
                self._ended.popitem(last=False)
            held = self._held.pop(lease.token, None)
        if held is not None:
            held_s = time.monotonic() - held.since
            ending = f"{outcome}, after {held.trouble}" if held.trouble else outcome
            record(event, held.lease, held_s=held_s, outcome=ending, trace=trace or held.trace)

    def has_ended(self, lease: Lease) -> bool:
        with self._lock:
            return lease.token in self._ended

    def forget(self, lease: Lease) -> None:
        """Drop what is known of a lease that will not be asked for again."""
        with self._lock:
            self._ended.pop(lease.token, None)
            self._held.pop(lease.token, None)


class Keeper:
    """Renews one lease in the background for the length of a block, as long as the gateway renews at all.

    ``renew`` asks for it; ``lifetime_s`` gives how long the lease lasts, None if that is not known; ``may`` whether it
    should last longer at this moment.
    """

    def __init__(
        self,
        lease: Lease,
        renew: Callable[[Lease], Lease],
        lifetime_s: Callable[[], float | None],
        may: Callable[[], bool],
    ) -> None:
        self._lease = lease
        self._renew = renew
        self._lifetime_s = lifetime_s
        self._may = may
        self._stop = threading.Event()

    def __enter__(self) -> Keeper:
        """Does nothing for a lease of unknown lifetime."""
        if self._lifetime_s() is not None:
            name = f"lease {self._lease.full_path}"
            threading.Thread(target=self._keep, name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask for no renewal any more. One that is under way is not waited for: it can do no harm."""
        self._stop.set()

    def _keep(self) -> None:
        tries = renewals = 0
        while (lifetime_s := self._lifetime_s()) is not None:
            # after a failure sooner, so that a gateway that restarts is met again within what is left
            if self._stop.wait(max(SHORTEST_PAUSE_S, lifetime_s * RENEW_AT / (4 if tries else 1))):
                return
            if renewals == MOST_RENEWALS:
                log.warning("lease on %s: limit of %d renewals reached", self._lease.full_path, renewals)
                return
            if not self._may():
                continue
            try:
                self._lease = self._renew(self._lease)
                tries, renewals = 0, renewals + 1
            except (NotOffered, LeaseLost):
                return  # what that means for the lease is known to the client
            except GatewayError as error:
                tries += 1
                if not self._stop.is_set():
                    log.warning("lease on %s not renewed, trying again: %s", self._lease.full_path, error)
                if not error.retryable:
                    return
