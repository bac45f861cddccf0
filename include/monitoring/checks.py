"""The checks before a night: connections, gateways, repositories and all else that a site names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from include.cvmfs.commit.create import expiry_warning
from include.cvmfs.coordination.freeze import look
from include.cvmfs.revision.repository import Repository
from include.gateway.client.client import GatewayClient, open_gateway
from include.gateway.client.values import LeaseInfo
from include.gateway.errors import AccessRefused, PathBusy, RepositoryDisabled
from include.gateway.protocol import API, TaskName
from include.ledger.engine import shown
from include.ledger.migrate import version
from include.monitoring import store_checks
from include.monitoring.airflow_checks import look_at_bounds, look_at_paused, look_at_pools, look_at_workers
from include.monitoring.findings import Check, Finding, Severity
from include.monitoring.store_checks import TIMEOUT_S, opened, skew
from include.notify.notifier import service_of
from include.settings.errors import MissingConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.settings.traits import airflow_executor
from include.settings.urls import base_url
from include.site.site import Site

FATAL = timedelta(days=1)
"""A whitelist that ends earlier than this may end within the night."""


def look_at_repository(site: Site, fqrn: str) -> Iterator[Finding]:
    """Yield what readers see by the public URL and what is in the store, both verified with the public key alone."""
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
    """Tell whether the repository is frozen: then a night waits."""
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
    """Yield who holds a lease now, and since about when: a lease is held for moments."""
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
    """Return who holds a lease, and what that means. The gateway does not report when it was granted, only until
    when."""
    whose = "a task of ours" if TaskName.parse(lease.hostname) else "another user"
    left_s = (lease.expires - now).total_seconds()
    renewed_s = max(0.0, longest_s - left_s)
    seen = f"held by {whose}, {lease.hostname!r} with key {lease.key_id}, renewed about {renewed_s:.0f} s ago"
    cure = "Let its holder finish; one of a dead task is ended by the DAG `leases` within 15 minutes."
    return Finding("leases", lease.full_path, Severity.WARNING, seen, cure)


def node(site: Site, fqrn: str) -> Iterator[Finding]:
    """Tell whether we can log in to the repository's publisher node."""
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


Asked = Callable[[str], bool | None]
"""Whether Airflow has a connection of this id; None where it cannot be asked."""
CANNOT_ASK = "not defined here, and Airflow cannot be asked whether it has it"
IN_AIRFLOW = "defined in Airflow; commands here cannot use it"


def airflow_has_all(_: str) -> bool:
    """For callers whose secrets come from Airflow: what they miss, it does not have."""
    return False


def named(settings: SiteSettings, fqrns: Iterable[str], store_checks: Iterable[str]) -> Mapping[str, str]:
    """Every connection that is needed, with what for."""
    found: dict[str, list[str]] = {}

    def need(name: str | None, what: str) -> None:
        if name:
            found.setdefault(name, []).append(what)

    for name in store_checks:
        need(settings.store(name).connection, f"store {name}")
        need(settings.store(name).gateway_connection, f"gateways to store {name}")
        need(settings.store(name).collector_connection, f"collections in store {name}")
    for fqrn in fqrns:
        repository = settings.repository(fqrn)
        need(repository.gateway, f"gateway of {fqrn}")
        need(repository.gateway_admin, f"administrator of the gateway of {fqrn}")
        need(repository.server.connection if repository.server else None, f"key of the node of {fqrn}")
        for replica in repository.replicas:
            need(replica.node.connection if replica.node else None, f"key of replica {replica.name} of {fqrn}")
    need(settings.ledger_connection, "ledger")
    need(settings.airflow_connection, "Airflow's API")
    need(settings.metrics_connection, "token of Prometheus")
    for name, what in _notifying(settings).items():
        need(name, what)
    return {name: ", ".join(what) for name, what in sorted(found.items())}


def look_at_connections(
    settings: SiteSettings, secrets: Secrets, names: Mapping[str, str], asked: Asked = airflow_has_all
) -> Iterator[Finding]:
    """Tell whether each is defined. `asked`: whether Airflow has one that is not defined in this environment."""
    notifying = _notifying(settings)
    for name, what in names.items():
        try:
            found = secrets.get(name)
            if settings.notify.apprise is not None and name in settings.notify.apprise.connections:
                service_of(found)
        except MissingConnection as error:
            yield _missing(name, what, error, asked(name), needed_here=name not in notifying)
        except SettingsError as error:
            yield Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))
        else:
            yield Finding("connection", name, Severity.OK, f"for {what}")


def _missing(name: str, what: str, error: MissingConnection, there: bool | None, *, needed_here: bool) -> Finding:
    if there and not needed_here:
        return Finding("connection", name, Severity.OK, f"for {what}: defined in Airflow")
    if there:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {IN_AIRFLOW}", str(error))
    if there is None and not needed_here:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {CANNOT_ASK}", str(error))
    return Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))


def _notifying(settings: SiteSettings) -> Mapping[str, str]:
    """Return what only Airflow's tasks use."""
    services = settings.notify.apprise
    return dict.fromkeys(services.connections if services else (), "apprise")


def checks_of(
    site: Site,
    slot: str | None = None,
    *,
    logs: Path | None = None,
    asked: Asked = airflow_has_all,
) -> list[Check]:
    """The checks for a deployment, or for one slot of it. Raises SettingsError for a slot that does not exist.

    `logs`: where Airflow keeps the logs of tasks; by default as in the environment. `asked`: whether Airflow has
    a connection that the secrets do not have.
    """
    settings = site.settings
    chosen = [settings.slot(slot)] if slot else list(settings.slots.values())
    fqrns = sorted({chosen_slot.repository for chosen_slot in chosen} if slot else settings.repositories)
    used = {chosen_slot.store for chosen_slot in chosen} | {settings.repository(fqrn).store for fqrn in fqrns}
    sources = {chosen_slot.store for chosen_slot in chosen}
    found = [
        Check(
            "connections",
            "",
            partial(look_at_connections, settings, site.secrets, named(settings, fqrns, sorted(used)), asked),
            "Define it.",
        ),
        Check("ledger", settings.ledger.partition("://")[0], partial(_ledger, site), "Start its server."),
        Check(
            "disk", "", partial(store_checks.room, store_checks.written(settings, used, logs)), "Correct `paths.var`."
        ),
        Check("pools", "", partial(look_at_pools, settings, site.secrets), "Start Airflow's API server."),
        Check("paused", "", partial(look_at_paused, settings, site.secrets, [slot] if slot else None),
              "Start Airflow's API server."),
    ]  # fmt: skip
    found += [
        Check("bounds", name, partial(look_at_bounds, site, name), "Start the ledger's server.")
        for name in (chosen_slot.name for chosen_slot in chosen)
    ]
    if "Celery" in airflow_executor(os.environ):
        found.append(Check("workers", "", partial(look_at_workers, settings, os.environ), "Start the broker."))
    for name in sorted(used):
        cure = "Check its URL, endpoint and connection, and that it runs."
        found.append(
            Check("store", name, partial(store_checks.look_at_store, site, name, source=name in sources), cure)
        )
        found.append(Check("clock", name, partial(store_checks.clock, settings.store(name)), cure))
        keeps = partial(store_checks.conditions, site, name)
        found.append(Check("conditional writes", name, keeps, "Run: nightshift settings check"))
    for fqrn in fqrns:
        cure = "Start the gateway, or correct host and port of its connection."
        readable = "Check the public URL, the store behind it, and `public_key`."
        found += [
            Check("roles", fqrn, partial(store_checks.roles, site, fqrn), "See: nightshift settings roles"),
            Check("gateway", fqrn, partial(look_at_gateway, site, fqrn), cure),
            Check("leases", fqrn, partial(leases, site, fqrn), cure),
            Check("repository", fqrn, partial(look_at_repository, site, fqrn), readable),
            Check("freeze", fqrn, partial(freeze, site, fqrn), readable),
        ]
        if settings.repository(fqrn).server is not None:
            cure = "See `server:` and docs/publishers.md."
            found.append(Check("publisher node", fqrn, partial(node, site, fqrn), cure))
    return found


def _ledger(site: Site) -> Iterator[Finding]:
    engine = site.ledger
    yield Finding("ledger", shown(engine.url), Severity.OK, f"answers, tables of version {version(engine)}")
