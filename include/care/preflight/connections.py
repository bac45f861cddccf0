"""The connections that a site names: which there are, what each is for, and whether it is defined."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from include.care.notify.notifier import service_of
from include.care.preflight import gateways, stores
from include.care.preflight.findings import Check, Finding, Severity
from include.care.preflight.pools import look_at_bounds, look_at_paused, look_at_pools
from include.care.preflight.workers import look_at_workers
from include.ledger.engine import shown
from include.ledger.migrate import version
from include.settings.errors import MissingConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.settings.traits import airflow_executor
from include.site.site import Site

Asked = Callable[[str], bool | None]
"""Whether Airflow has a connection of this id; None where it cannot be asked."""
CANNOT_ASK = "not defined here, and Airflow cannot be asked whether it has it"
IN_AIRFLOW = "defined in Airflow; commands here cannot use it"


def airflow_has_all(_: str) -> bool:
    """For callers whose secrets come from Airflow: what they miss, it does not have."""
    return False


def named(settings: SiteSettings, fqrns: Iterable[str], stores: Iterable[str]) -> Mapping[str, str]:
    """Every connection that is needed, with what for."""
    found: dict[str, list[str]] = {}

    def need(name: str | None, what: str) -> None:
        if name:
            found.setdefault(name, []).append(what)

    for name in stores:
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
    """Whether each is defined. `asked`: whether Airflow has one that is not defined in this environment."""
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
    """What only Airflow's tasks use."""
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
        Check("disk", "", partial(stores.room, stores.written(settings, used, logs)), "Correct `paths.var`."),
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
        found.append(Check("store", name, partial(stores.look_at_store, site, name, source=name in sources), cure))
        found.append(Check("clock", name, partial(stores.clock, settings.store(name)), cure))
        keeps = partial(stores.conditions, site, name)
        found.append(Check("conditional writes", name, keeps, "Run: nightshift settings check"))
    for fqrn in fqrns:
        cure = "Start the gateway, or correct host and port of its connection."
        readable = "Check the public URL, the store behind it, and `public_key`."
        found += [
            Check("roles", fqrn, partial(stores.roles, site, fqrn), "See: nightshift settings roles"),
            Check("gateway", fqrn, partial(gateways.look_at_gateway, site, fqrn), cure),
            Check("leases", fqrn, partial(gateways.leases, site, fqrn), cure),
            Check("repository", fqrn, partial(gateways.look_at_repository, site, fqrn), readable),
            Check("freeze", fqrn, partial(gateways.freeze, site, fqrn), readable),
        ]
        if settings.repository(fqrn).server is not None:
            node = partial(gateways.node, site, fqrn)
            found.append(Check("publisher node", fqrn, node, "See `server:` and docs/publishers.md."))
    return found


def _ledger(site: Site) -> Iterator[Finding]:
    engine = site.ledger
    yield Finding("ledger", shown(engine.url), Severity.OK, f"answers, tables of version {version(engine)}")
