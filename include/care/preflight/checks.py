"""What a night needs, as a list of checks for a site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from include.care.preflight import folders, gateways, repositories, stores
from include.care.preflight.connections import Asked, airflow_has_all, look_at_connections, named
from include.care.preflight.findings import Finding, Severity
from include.care.preflight.paused_dags import look_at_paused
from include.care.preflight.pools import look_at_bounds, look_at_pools
from include.care.preflight.run import Check
from include.care.preflight.workers import look_at_workers
from include.ledger.engine import shown
from include.ledger.migrate import version
from include.settings.ledger import airflow_executor
from include.site.site import Site


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
        Check("disk", "", partial(folders.room, folders.written(settings, used, logs)), "Correct `paths.var`."),
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
            Check("repository", fqrn, partial(repositories.look_at_repository, site, fqrn), readable),
            Check("freeze", fqrn, partial(repositories.freeze, site, fqrn), readable),
        ]
        if settings.repository(fqrn).server is not None:
            node = partial(gateways.node, site, fqrn)
            found.append(Check("publisher node", fqrn, node, "See `server:` and docs/publishers.md."))
    return found


def _ledger(site: Site) -> Iterator[Finding]:
    engine = site.ledger
    yield Finding("ledger", shown(engine.url), Severity.OK, f"answers, tables of version {version(engine)}")
