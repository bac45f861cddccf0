"""List of all checks of a deployment, by depth, and those of its gateways, nodes, ledger and repositories."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from include.airflow_api import site_api
from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.create import expiry_warning
from include.cvmfs.coordination.freeze import look
from include.cvmfs.errors import CvmfsError, LibraryMissing, WhitelistExpired
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.objects import Compressor
from include.cvmfs.revision.repository import Repository
from include.fts.open import connected_credential, open_client, server_url
from include.gateway.client.client import GatewayClient, open_gateway
from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import AccessRefused, PathBusy, RepositoryDisabled
from include.gateway.protocol import API, TaskName
from include.ledger.engine import shown
from include.ledger.errors import LedgerError
from include.ledger.migrate import version
from include.monitoring import airflow_checks, store_checks
from include.monitoring.airflow_checks import (
    look_at_bounds,
    look_at_connections,
    look_at_paused,
    look_at_pools,
    look_at_workers,
    needed,
)
from include.monitoring.findings import Check, Depth, Finding, PreflightReport, Severity, run
from include.monitoring.store_checks import TIMEOUT_S, opened, skew
from include.publishers.base import NO_NANOSECONDS, holds_nanoseconds
from include.settings.errors import SettingsError
from include.settings.model import RepositorySettings, SiteSettings
from include.settings.secrets import base_url
from include.settings.stageout import CatalogueKind
from include.settings.traits import airflow_executor, require_single_writer
from include.site.site import Site
from include.stageout.opening import rucio_of
from include.stageout.registration.catalogue import owners_to_register
from include.stageout.retry import retry_algorithm
from include.storage.errors import StoreError
from include.storage.kinds import Traits, kind_of

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
            cure = "Add the repository to the gateway's configuration, and send it SIGHUP (nightshift lab restart)"
            yield Finding("gateway", fqrn, Severity.ERROR, seen, cure)
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


LIMIT_S = 5.0
"""Time-out of one part."""


def parts_of(site: Site, leases: dict[str, list[LeaseInfo]]) -> list[Check]:
    """Return the checks of `/health`: each part answers. ``leases``: filled with those held now, by repository."""
    settings = site.settings
    gateways: dict[str, list[str]] = {}
    for fqrn, repository in settings.repositories.items():
        gateways.setdefault(repository.gateway, []).append(fqrn)
    stores = {repository.store for repository in settings.repositories.values()}
    stores |= {slot.store for slot in settings.slots.values()}
    fts = settings.stageout.fts if settings.sites else ()
    tested = "Check that the FTS server runs; *Test* of its connection."
    return [
        _check("ledger", "ledger", "Start its server.", _ledger, site, "ledger"),
        *(
            _check("store", name, "Check that the store runs.", store_checks.look_at_store, site, name)
            for name in sorted(stores)
        ),
        *(
            _check("gateway", name, "Check that the gateway runs.", _answering_gateway, site, name, fqrns, leases)
            for name, fqrns in sorted(gateways.items())
        ),
        *(_check("fts", name, tested, _answering_fts, site, name) for name in fts),
        *_of_catalogue(site, timeout_s=LIMIT_S),
    ]


@dataclass(frozen=True, slots=True)
class Health:
    """Result of one check of all parts.

    Attributes:
        report: A finding for each part: `ledger`, `store`, `gateway` or, where there are storage sites, `fts`. Gateways
            and FTS servers are named by their connections.
        leases: Those that are held now, by repository, where the gateway answered.
    """

    report: PreflightReport
    leases: dict[str, list[LeaseInfo]]


def look_at_health(site: Site, *, limit_s: float = LIMIT_S) -> Health:
    """Check all parts side by side. Changes nothing, and a part that is away hides no other.

    Args:
        site: The deployment.
        limit_s: Seconds after which a part counts as away.
    """
    leases: dict[str, list[LeaseInfo]] = {}
    report = run(parts_of(site, leases), limit_s=limit_s)
    # a gateway that answers later than the limit still writes into its own dictionary
    return Health(report, dict(leases))


@dataclass(frozen=True, slots=True)
class Outlook:
    """State of what ends or stands still before anything fails.

    Attributes:
        whitelists: When the whitelist that readers get ends or has ended, by repository; only verified ones.
        paused: Whether a DAG is paused, of those that the site needs; empty where Airflow cannot be asked.
    """

    whitelists: dict[str, datetime] = field(default_factory=dict)
    paused: dict[str, bool] = field(default_factory=dict)


def look_ahead(site: Site, *, limit_s: float = LIMIT_S) -> Outlook:
    """Read whitelists and the states of DAGs side by side. What does not answer in time is left out.

    Args:
        site: The deployment.
        limit_s: Seconds for each.
    """
    whitelists: dict[str, datetime] = {}
    paused: dict[str, bool] = {}

    def ending(fqrn: str) -> Iterator[Finding]:
        try:
            whitelist = site.repository(fqrn).trusted.whitelist
        except WhitelistExpired as over:
            whitelists[fqrn] = over.expires
        else:
            if whitelist is not None:
                whitelists[fqrn] = whitelist.expires
        yield from ()

    def pausing() -> Iterator[Finding]:
        if site.settings.airflow_connection is not None:
            states = site_api(site.settings, site.secrets, timeout_s=limit_s).paused()
            paused.update({dag_id: states.get(dag_id, True) for dag_id in needed(site.settings)})
        yield from ()

    names = sorted(site.settings.repositories)
    run([*(_check("whitelist", fqrn, "", ending, fqrn) for fqrn in names), _check("paused", "", "", pausing)],
        limit_s=limit_s)  # fmt: skip
    # what answers later than the limit still writes into its own dictionary
    return Outlook(dict(whitelists), dict(paused))


def _answering_gateway(
    site: Site, name: str, fqrns: list[str], leases: dict[str, list[LeaseInfo]]
) -> Iterator[Finding]:
    found, port = site.secrets.get(name), site.settings.gateway.port
    with open_gateway(found, port=port, timeout_s=LIMIT_S, retries=0) as client:
        held = client.leases()
    for fqrn in fqrns:
        leases[fqrn] = [lease for lease in held if lease.repository == fqrn]
    yield Finding("gateway", name, Severity.OK, f"{base_url(found, port=port)} answers")


def _answering_fts(site: Site, name: str) -> Iterator[Finding]:
    connection = site.secrets.get(name)
    with open_client(connection, connected_credential(connection), timeout_s=LIMIT_S, retries=0) as client:
        client.whoami()
    yield Finding("fts", name, Severity.OK, f"{server_url(connection)} answers")


def _of_catalogue(site: Site, *, timeout_s: float = 6 * LIMIT_S) -> list[Check]:
    catalogue = site.settings.stageout.catalogue
    if not site.settings.sites or catalogue.kind is CatalogueKind.LEDGER:
        return []
    cure = "Check that the Rucio server runs, and the account of its connection."
    return [_check("catalogue", str(catalogue.connection), cure, look_at_catalogue, site, timeout_s)]


def look_at_retry(settings: SiteSettings) -> Iterator[Finding]:
    """Yield whether the retry algorithm of the configuration can be loaded."""
    name = settings.stageout.retry
    retry_algorithm(name)
    yield Finding("retry", name, Severity.OK, "can be loaded")


def look_at_catalogue(site: Site, timeout_s: float) -> Iterator[Finding]:
    """Yield whether the catalogue has what transfers need that are on the way: account, scopes and RSEs."""
    name = str(site.settings.stageout.catalogue.connection)
    faults = list(rucio_of(site, timeout_s).faults(owners_to_register(site.ledger)))
    for fault in faults:
        yield Finding("catalogue", name, Severity.ERROR, fault, "Let an administrator of Rucio make or change it.")
    if not faults:
        yield Finding("catalogue", name, Severity.OK, "it answers, and has the scopes and RSEs")


def checks_of(
    site: Site,
    slot: str | None = None,
    *,
    depth: Depth = Depth.REACH,
    logs: Path | None = None,
    asked: airflow_checks.Asked = airflow_checks.airflow_has_all,
) -> list[Check]:
    """Return the checks of a depth, in an order in which they can be run one after the other.

    `slot`: of this slot only, where each part is reached; SettingsError if it does not exist. `logs`: where Airflow
    keeps the logs of tasks; by default as in the environment. `asked`: whether Airflow has a connection that the
    secrets do not have.
    """
    match depth:
        case Depth.FILE:
            return _of_file(site, asked)
        case Depth.REACH:
            return _of_reach(site, slot, logs, asked)
        case Depth.RACE:
            return _of_race(site)


def _of_file(site: Site, asked: airflow_checks.Asked) -> list[Check]:
    settings = site.settings
    names = airflow_checks.named(settings, settings.repositories, settings.stores)
    return [
        _check("connections", "", "Define it.", look_at_connections, settings, site.secrets, names, asked, logins=True),
        _check("schedules", "", "Correct `schedule`.", airflow_checks.look_at_schedules, settings),
        _check("public keys", "", "Correct `public_key`.", store_checks.look_at_keys, settings),
        _check("ledger", "", "Start its server.", store_checks.look_at_ledger, site),
        _check("repositories", "", "Correct `repositories`.", look_at_publishing, settings),
        *([_check("retry", "", "Correct `stageout.retry`.", look_at_retry, settings)] if settings.sites else []),
    ]


def _of_race(site: Site) -> list[Check]:
    traits: dict[str, Traits] = {}
    cure = "Check its URL, endpoint and connection."
    checks: list[Check] = []
    for name in site.settings.stores:
        checks.append(_check("store", name, cure, store_checks.race, site, name, traits))
        checks.append(_check("collector", name, cure, store_checks.look_at_collector, site, name))
    return [
        *checks,
        _check("manifest writers", "", cure, look_at_writers, site.settings, traits),
        _check("revisions", "", cure, look_at_revisions, site, traits),
        *_of_catalogue(site),
    ]


def _of_reach(site: Site, slot: str | None, logs: Path | None, asked: airflow_checks.Asked) -> list[Check]:
    settings = site.settings
    slots = [slot] if slot else list(settings.slots)
    chosen = [settings.slot(name) for name in slots]
    fqrns = sorted({each.repository for each in chosen} if slot else settings.repositories)
    sources = {each.store for each in chosen}
    used = sorted(sources | {settings.repository(fqrn).store for fqrn in fqrns})
    names, folders = airflow_checks.named(settings, fqrns, used), store_checks.written(settings, used, logs)
    api = "Start Airflow's API server."
    checks = [
        _check("connections", "", "Define it.", look_at_connections, settings, site.secrets, names, asked),
        _check("ledger", settings.ledger.partition("://")[0], "Start its server.", _ledger, site),
        _check("disk", "", "Correct `paths.var`.", store_checks.room, folders),
        _check("backup", "", "Check the store of `backup.store`.", store_checks.look_at_backups, site),
        _check("restore", "", "Start the ledger's server.", store_checks.look_at_restores, site),
        _check("pools", "", api, look_at_pools, settings, site.secrets),
        _check("paused", "", api, look_at_paused, settings, site.secrets, slots),
        *(_check("bounds", name, "Start the ledger's server.", look_at_bounds, site, name) for name in slots),
    ]
    checks += _of_catalogue(site)
    if "Celery" in airflow_executor(os.environ):
        checks.append(_check("workers", "", "Start the broker.", look_at_workers, settings, os.environ))
    for name in used:
        cure, race = "Check its URL, endpoint and connection, and that it runs.", "Run: nightshift settings check"
        checks += [
            _check("store", name, cure, store_checks.look_at_store, site, name, source=name in sources),
            _check("clock", name, cure, store_checks.clock, settings.store(name)),
            _check("conditional writes", name, race, store_checks.conditions, site, name),
        ]
    for fqrn in fqrns:
        cure = "Start the gateway, or correct host and port of its connection."
        readable = "Check the public URL, the store behind it, and `public_key`."
        checks += [
            _check("roles", fqrn, "See: nightshift settings roles", store_checks.roles, site, fqrn),
            _check("gateway", fqrn, cure, look_at_gateway, site, fqrn),
            _check("leases", fqrn, cure, leases, site, fqrn),
            _check("repository", fqrn, readable, look_at_repository, site, fqrn),
            _check("freeze", fqrn, readable, freeze, site, fqrn),
        ]
        if settings.repository(fqrn).server is not None:
            checks.append(_check("publisher node", fqrn, "See `server:` and docs/publishers.md.", node, site, fqrn))
    return checks


def _check(
    name: str, subject: str, cure: str, look: Callable[..., Iterable[Finding]], *arguments: Any, **options: Any
) -> Check:
    return Check(name, subject, partial(look, *arguments, **options), cure)


def _ledger(site: Site, subject: str = "") -> Iterator[Finding]:
    url, tables = shown(site.ledger.url), f"tables of version {version(site.ledger)}"
    if subject:
        yield Finding("ledger", subject, Severity.OK, f"{url} answers, {tables}")
    else:
        yield Finding("ledger", url, Severity.OK, f"answers, {tables}")


def look_at_publishing(settings: SiteSettings) -> Iterator[Finding]:
    """Yield the repositories on a node of their own, and those that nothing can be published to."""
    for repository in settings.repositories.values():
        if node := repository.server:
            seen = f"published on {node.user}@{node.host}:{node.port}"
            yield Finding("repository", repository.fqrn, Severity.OK, seen)
        elif not kind_of((store := settings.store(repository.store)).url).writable:
            problem = f"store {store.name}, {store.url}, can only be read, so nothing can be published to it"
            seen, cure = _writers(repository), f"{problem}. Name a store with s3:// or file://."
            yield Finding("repository", repository.fqrn, Severity.ERROR, seen, cure)
        else:
            try:
                Compressor(repository.prepare.compression).require()
            except LibraryMissing as error:
                yield Finding("repository", repository.fqrn, Severity.ERROR, _writers(repository), str(error))


def _writers(repository: RepositorySettings) -> str:
    return f"manifest writers: {repository.manifest_writers}"


def look_at_writers(settings: SiteSettings, traits: Mapping[str, Traits]) -> Iterator[Finding]:
    """Yield whether as many gateways may write the manifest of each repository, by what its store keeps."""
    for repository in settings.repositories.values():
        if repository.server is not None or not kind_of(settings.store(repository.store).url).writable:
            continue
        writers = [f"gateway {number + 1}" for number in range(repository.manifest_writers)]
        verdict = require_single_writer(
            traits.get(repository.store), store=repository.store, fqrn=repository.fqrn, writers=writers
        )
        severity, cure = (Severity.OK, "") if verdict.allowed else (Severity.ERROR, verdict.reason)
        yield Finding("repository", repository.fqrn, severity, _writers(repository), cure)


def look_at_revisions(site: Site, answering: Mapping[str, Traits]) -> Iterator[Finding]:
    """Compare the settings with what the repositories are in the stores that answer; what is absent is passed over."""
    for repository in (each for each in site.settings.repositories.values() if each.store in answering):
        try:
            store = site.repository_store(repository.fqrn)
            manifest = read_head(store, repository.fqrn).manifest
            layout = CatalogCache(store).open_nested("", manifest.root).layout
        except (CvmfsError, StoreError, SettingsError, LedgerError, OSError):
            continue
        algorithm = manifest.root.algorithm.name.lower()
        notes: tuple[str, ...] = ()
        if algorithm != repository.hash.value:
            what = f"`hash: {repository.hash.value}` has no effect: the repository was created with {algorithm}"
            notes = (f"{what}, which its new objects are hashed with",)
        wrong = repository.prepare.mtime_ns and not holds_nanoseconds(layout)
        severity, cure = (Severity.ERROR, NO_NANOSECONDS.format(layout.value)) if wrong else (Severity.OK, "")
        seen = f"revision {manifest.revision}, {algorithm}, catalogs of {layout.value}"
        yield Finding("repository", repository.fqrn, severity, seen, cure, notes)
