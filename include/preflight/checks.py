"""What a night needs, as a list of checks for a site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from include.ledger.engine import shown
from include.ledger.migrate import version
from include.preflight import gateways, repositories, stores
from include.preflight.findings import Finding, Severity
from include.preflight.pools import look_at_pools
from include.preflight.run import Check
from include.publishers.connect import Connections
from include.settings.errors import SettingsError
from include.settings.model import Site


def checks_of(connections: Connections, slot: str | None = None) -> list[Check]:
    """The checks for a site, or for one slot of it. Raises UnknownSetting for a slot that there is not."""
    site = connections.site
    chosen = [site.slot(slot)] if slot else list(site.slots.values())
    fqrns = sorted({one.repository for one in chosen} if slot else site.repositories)
    used = {one.store for one in chosen} | {site.repository(fqrn).store for fqrn in fqrns}
    sources = {one.store for one in chosen}
    found = [
        Check("connections", "", partial(_connections, connections, _named(site, fqrns, used)), "Define it."),
        Check("ledger", site.ledger.partition("://")[0], partial(_ledger, connections), "Start its server."),
        Check("disk", str(site.paths.var), partial(stores.disk, "var", site.paths.var), "Correct `paths.var`."),
        Check("pools", "", partial(look_at_pools, site, connections.secrets), "Start Airflow's API server."),
    ]
    for name in sorted(used):
        cure = "Check its URL, endpoint and connection, and that it runs."
        found.append(
            Check("store", name, partial(stores.look_at_store, connections, name, source=name in sources), cure)
        )
        found.append(Check("clock", name, partial(stores.clock, site.store(name)), cure))
        keeps = partial(stores.conditions, connections, name)
        found.append(Check("conditional writes", name, keeps, "Run: nightshift settings check"))
    for fqrn in fqrns:
        settings = site.repository(fqrn)
        cure = "Start the gateway, or correct host and port of its connection."
        readable = "Check the public URL, the store behind it, and `public_key`."
        found += [
            Check("roles", fqrn, partial(stores.roles, connections, fqrn), "See: nightshift settings roles"),
            Check("gateway", fqrn, partial(gateways.look_at_gateway, connections, fqrn), cure),
            Check("leases", fqrn, partial(gateways.leases, connections, fqrn), cure),
            Check("repository", fqrn, partial(repositories.look_at_repository, connections, fqrn), readable),
            Check("freeze", fqrn, partial(repositories.freeze, connections, fqrn), readable),
        ]
        if settings.server is not None:
            node = partial(gateways.node, connections, fqrn)
            found.append(Check("publisher node", fqrn, node, "See `server:` and docs/publishers.md."))
    return found


def _named(site: Site, fqrns: Iterable[str], used: Iterable[str]) -> Mapping[str, str]:
    """Every connection that is needed, with what for."""
    found: dict[str, list[str]] = {}

    def need(name: str | None, what: str) -> None:
        if name:
            found.setdefault(name, []).append(what)

    for name in used:
        need(site.store(name).connection, f"store {name}")
        need(site.store(name).gateway_connection, f"gateways to store {name}")
    for fqrn in fqrns:
        settings = site.repository(fqrn)
        need(settings.gateway, f"gateway of {fqrn}")
        need(settings.gateway_admin, f"administrator of the gateway of {fqrn}")
        need(settings.server.connection if settings.server else None, f"key of the node of {fqrn}")
    need(site.ledger_connection, "ledger")
    need(site.airflow_connection, "Airflow's API")
    need(site.notify.mail.connection if site.notify.mail else None, "mail")
    need(site.notify.webhook.connection if site.notify.webhook else None, "webhook")
    return {name: ", ".join(what) for name, what in sorted(found.items())}


def _connections(connections: Connections, named: Mapping[str, str]) -> Iterator[Finding]:
    for name, what in named.items():
        try:
            connections.secrets.get(name)
        except SettingsError as error:
            yield Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))
        else:
            yield Finding("connection", name, Severity.OK, f"for {what}")


def _ledger(connections: Connections) -> Iterator[Finding]:
    engine = connections.ledger
    yield Finding("ledger", shown(engine.url), Severity.OK, f"answers, tables of version {version(engine)}")
