"""Configuration, keys, leases, commits, limits and figures, which all calls of the service share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from include.gateway.protocol import (
    BODY_SIGNATURE_HEADER,
    Offer,
    body_signature_fits,
    format_offers,
)
from include.gateway.service.commits.queue import CommitQueue, Committer, OnPoint, pass_by
from include.gateway.service.config import ConfigError, ReadConfig, ServiceConfig
from include.gateway.service.http.payloads import Access, Payloads, signature_of
from include.gateway.service.http.waiters import WaitingList
from include.gateway.service.leases.lease_rows import LeaseRow
from include.gateway.service.leases.lease_table import LeaseTable
from include.gateway.service.limits import Limiter
from include.gateway.service.metrics import Metrics
from include.gateway.service.requests import Refused

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
        self.metrics.read_with(self.table.held, lambda: len(self.waiting))

    # -- who may

    def signed_by(self, request: Request, message: bytes) -> str:
        """The id of the key that signed ``message``. Raises Refused, and Malformed for one who asks too much."""
        try:
            key_id = self.access.authenticate(signature_of(request), message)
        except Refused:
            self.limiter.refused(_host(request))
            raise
        self.limiter.signed(key_id)
        return key_id

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
        try:
            key_id = self.access.authenticate_admin(signature_of(request), message, repository)
        except Refused:
            self.limiter.refused(_host(request))
            raise
        self.limiter.signed(key_id)
        return key_id

    def owner_or_admin(self, key_id: str) -> Callable[[str, str], bool]:
        """Of a lease's key and repository, whether ``key_id`` may act on it."""
        return lambda owner, repository: key_id == owner or self.access.is_admin(key_id, repository)

    def may_use(self, key_id: str) -> Callable[[LeaseRow], bool]:
        may = self.owner_or_admin(key_id)
        return lambda row: may(row.key_id, row.repository)

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

    @staticmethod
    def refuse_configuration(error: Exception) -> None:
        """Log that the new configuration cannot be used."""
        log.error("configuration refused, the old one stays", extra={"fields": {"detail": str(error)}})


def log_not_served(config: ServiceConfig) -> None:
    """A line for each repository of the site that is not served here."""
    for name, reason in sorted(config.not_served.items()):
        log.warning("repository not served", extra={"fields": {"repository": name, "reason": reason}})


def _host(request: Request) -> str:
    return request.client.host if request.client else "unknown"
