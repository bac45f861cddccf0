"""Gateways and publisher nodes before a night: they answer, take our keys, and no lease is held."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from include.care.preflight.findings import Finding, Severity
from include.care.preflight.stores import TIMEOUT_S, opened, skew
from include.cvmfs.commit.create import expiry_warning
from include.cvmfs.coordination.freeze import look
from include.cvmfs.revision.repository import Repository
from include.gateway.client.client import GatewayClient, open_gateway
from include.gateway.client.values import LeaseInfo
from include.gateway.errors import AccessRefused, PathBusy, RepositoryDisabled
from include.gateway.protocol import API, TaskName
from include.settings.urls import base_url
from include.site.site import Site

FATAL = timedelta(days=1)
"""A whitelist that ends earlier than this may end within the night."""


def look_at_repository(site: Site, fqrn: str) -> Iterator[Finding]:
    """What readers see by the public URL and what is in the store, both verified with the public key alone."""
    settings, now = site.settings.repository(fqrn), datetime.now(UTC)
    if not settings.public_key.is_file():
        cure = f"Create the repository (nightshift repo create {fqrn}), or copy its .pub file there."
        yield Finding("repository", fqrn, Severity.ERROR, f"there is no public key {settings.public_key}", cure)
        return
    readers = site.repository(fqrn)
    keys = [settings.public_key.read_bytes()]
    head = Repository.open(opened(site, settings.store).child(fqrn), fqrn=fqrn, public_keys=keys, now=now)
    theirs, ours = readers.manifest.revision, head.manifest.revision
    if theirs < ours:
        cure = "Wait a minute and check again; if it stays, check the caches in front of the store."
        seen = f"readers see revision {theirs}, the store has {ours}"
        yield Finding("repository", fqrn, Severity.WARNING, seen, cure)
    elif theirs > ours or readers.manifest.root != head.manifest.root:
        cure = "Let `store` and `public_url` name the same repository."
        seen = f"readers see revision {theirs} of another repository than the store's {ours}"
        yield Finding("repository", fqrn, Severity.ERROR, seen, cure)
    else:
        yield Finding("repository", fqrn, Severity.OK, f"revision {ours}, by the public URL and in the store")
    whitelist = readers.trusted.whitelist
    if whitelist is None:
        yield Finding("whitelist", fqrn, Severity.ERROR, "not verified", "Give the public key in the configuration.")
        return
    cure = f"Where the master key is: nightshift repo resign {fqrn}"
    warning = expiry_warning(whitelist, now, soon=timedelta(days=settings.care.whitelist_days))
    days = (whitelist.expires - now) / timedelta(days=1)
    if warning is None:
        yield Finding("whitelist", fqrn, Severity.OK, f"lasts {days:.1f} days more")
    else:
        severity = Severity.ERROR if whitelist.expires - now < FATAL else Severity.WARNING
        yield Finding("whitelist", fqrn, severity, f"ends in {days:.1f} days", cure)


def freeze(site: Site, fqrn: str) -> Iterator[Finding]:
    """Whether the repository is frozen: then a night waits."""
    found = look(opened(site, site.settings.repository(fqrn).store).child(fqrn), datetime.now(UTC))
    if found is None:
        yield Finding("freeze", fqrn, Severity.OK, "not frozen")
    else:
        yield Finding("freeze", fqrn, Severity.WARNING, str(found), f"If that is over: nightshift thaw {fqrn}")


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
