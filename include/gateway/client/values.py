"""Values of a gateway's answers: repositories, the leases of all holders, and the lease at hand."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from include.gateway.errors import SEALED_LEASE_UNREADABLE
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
