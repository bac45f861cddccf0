"""What a gateway reports to a client: repositories, the leases of all holders, and the lease at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from include.gateway.duration import parse_time
from include.gateway.paths import LeasePath


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
