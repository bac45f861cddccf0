"""Gateways and publisher nodes before a night: they answer, take our keys, and no lease is held."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from include.care.preflight.findings import Finding, Severity
from include.care.preflight.stores import TIMEOUT_S, skew
from include.gateway.client.client import GatewayClient
from include.gateway.client.open import open_gateway
from include.gateway.client.values import LeaseInfo
from include.gateway.errors import AccessRefused, PathBusy, RepositoryDisabled
from include.gateway.holders import TaskName
from include.gateway.protocol import API
from include.settings.urls import base_url
from include.site.site import Site

PROBE = ".nightshift-preflight"


def look_at_gateway(site: Site, fqrn: str) -> Iterator[Finding]:
    """It serves the repository, and takes a lease on a probe path with our key; an administrator's key ends it."""
    settings = site.settings.repository(fqrn)
    found = site.secrets.get(settings.gateway)
    port = site.settings.gateway.port
    url = base_url(found, port=port)
    with open_gateway(found, port=port, timeout_s=TIMEOUT_S, retries=0) as client:
        known = {repository.name: repository for repository in client.repositories()}
        if fqrn not in known:
            seen = f"{url} serves {', '.join(sorted(known)) or 'no repository'}, not this one"
            yield Finding(
                "gateway",
                fqrn,
                Severity.ERROR,
                seen,
                "Add the repository to the gateway's configuration, and send it SIGHUP (nightshift lab restart)",
            )
            return
        yield Finding("gateway", fqrn, Severity.OK, f"{url} serves it")
        below = known[fqrn].keys.get(found.login or "", "/").rstrip("/")
        yield from _key(client, fqrn, settings.gateway, f"{below}/{PROBE}")
    if settings.gateway_admin is not None:
        key = site.secrets.get(settings.gateway_admin)
        with open_gateway(found, key=key, port=port, timeout_s=TIMEOUT_S, retries=0) as admin:
            try:
                admin.drop_by_path(fqrn, f"/{PROBE}")  # where no lease is held
            except AccessRefused as error:
                cure = f"Correct login and password of connection {settings.gateway_admin!r}."
                yield Finding("gateway", f"{fqrn} administrator", Severity.ERROR, str(error).rstrip("."), cure)
            else:
                yield Finding("gateway", f"{fqrn} administrator", Severity.OK, f"takes key {key.login}")
    yield from skew("gateway of", fqrn, f"{url}{API}", authorities=found.extra.get("authorities"))


def leases(site: Site, fqrn: str) -> Iterator[Finding]:
    """Who holds a lease now, and since about when: a lease is held for moments."""
    found = site.secrets.get(site.settings.repository(fqrn).gateway)
    port, now = site.settings.gateway.port, datetime.now(UTC)
    longest_s = float(found.extra.get("max_lease_time_s", site.settings.gateway.max_lease_time_s))
    with open_gateway(found, port=port, timeout_s=TIMEOUT_S, retries=0) as client:
        held = [lease for lease in client.leases() if lease.repository == fqrn and PROBE not in lease.path]
    if not held:
        yield Finding("leases", fqrn, Severity.OK, "none is open")
    for lease in held:
        yield judged_lease(lease, now, longest_s)


def judged_lease(lease: LeaseInfo, now: datetime, longest_s: float) -> Finding:
    """Who holds a lease, and what that means. The gateway does not report when it was granted, only until when."""
    whose = "a task of ours" if TaskName.parse(lease.hostname) else "another user"
    left_s = (lease.expires - now).total_seconds()
    renewed_s = max(0.0, longest_s - left_s)
    seen = f"held by {whose}, {lease.hostname!r} with key {lease.key_id}, renewed about {renewed_s:.0f} s ago"
    cure = "Let its holder finish; one of a dead task is ended by the DAG `leases` within 15 minutes."
    return Finding("leases", lease.full_path, Severity.WARNING, seen, cure)


def node(site: Site, fqrn: str) -> Iterator[Finding]:
    """Whether we can log in to the repository's publisher node."""
    from include.publishers.server.connection import SshConnection

    address = site.server(fqrn).node.address
    with SshConnection(address):
        yield Finding("publisher node", fqrn, Severity.OK, f"logged in as {address.name}")


def _key(client: GatewayClient, fqrn: str, connection: str, probe: str) -> Iterator[Finding]:
    subject = f"{fqrn} key {client.key_id}"
    try:
        client.drop(client.acquire(fqrn, probe, hostname="nightshift preflight"))
    except PathBusy:
        yield Finding("gateway", subject, Severity.OK, "takes it; the probe path is leased")
    except RepositoryDisabled as stopped:
        cure = f"nightshift thaw {fqrn}; or let the gateway's administrator enable it."
        yield Finding("gateway", subject, Severity.WARNING, f"gives out no leases: {stopped.reason}", cure)
    except AccessRefused as error:
        cure = f"Correct login and password of connection {connection!r}."
        yield Finding("gateway", subject, Severity.ERROR, str(error).rstrip("."), cure)
    else:
        yield Finding("gateway", subject, Severity.OK, "a lease was taken and given back")
