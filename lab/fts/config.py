"""The settings that the service is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from include.storage.kinds import Credentials
from lab.fts.copies.simulated import SimulationModel


@dataclass(frozen=True, slots=True)
class FtsServiceConfig:
    """Address of the service, its callers, and its copies, as the options of `nightshift fts serve` describe them.

    `tokens` None: no token is accepted.

    Beside these: `host`; `connections` at the same time, of which there are never more than three quarters of the
    process's file descriptors; and `head_s`, the seconds until the head of a request has to be complete.
    """

    state: Path
    host: str = "127.0.0.1"
    port: int = 8446
    tokens: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    authorities: Path | None = None
    admins: frozenset[str] = frozenset()
    active_per_link: int = 60
    tick_s: float = 0.1
    archive_after_s: float = 7 * 86400.0
    model: SimulationModel = field(default_factory=SimulationModel)
    folder: Path | None = None
    s3_endpoint: str | None = None
    s3_credentials: Credentials | None = None
    webdav: bool = False
    storage_authorities: Path | None = None
    threads: int = 16
    connections: int = 1024
    head_s: float = 20.0
    with_faults: bool = False

    @property
    def open_to_all(self) -> bool:
        """No caller has a credential: each is the lab's own user."""
        return self.tokens is None and self.authorities is None
