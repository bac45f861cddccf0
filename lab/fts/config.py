"""The settings that the service is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from include.storage.kinds import Credentials
from lab.fts.copies.simulated import SimulationModel


@dataclass(frozen=True, slots=True)
class FtsServiceConfig:
    """Where the service listens, who may call it, and how it copies.

    Attributes:
        state: The SQLite file.
        tokens: A file with a line `<token> <user>` for each caller, and `admin` behind those who may ban; None: no
            token is accepted.
        certificate, key, authorities: PEM files for mutual TLS; callers are then known by their certificates.
        admins: Users who may ban, beside those of the token file.
        active_per_link: How many files of a link are copied at the same time.
        tick_s: Seconds between two checks of what has ended and what can start.
        archive_after_s: When a job that has ended leaves the memory.
        model: Of simulated copies.
        folder: Files below it can be copied as `file://localhost/<path>`; None: none can.
        s3_endpoint, s3_credentials: Of `s3://bucket/key`; without credentials, none can be copied.
        webdav: Files can be copied between `http`, `https`, `dav` and `davs` storages.
        storage_authorities: A PEM bundle for their certificates; None: the system's.
        threads: How many of these copies are made at the same time.
        connections: At the same time, and never more than three quarters of the process's file descriptors.
        head_s: Seconds until the head of a request has to be complete.
        with_faults: `POST /simulated/faults` is accepted.
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
