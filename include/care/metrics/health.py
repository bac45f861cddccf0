"""Whether the ledger, the stores and the gateways of a deployment can be reached, each within a few seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from include.care.preflight.findings import Finding, PreflightReport, Severity
from include.care.preflight.run import Check, run
from include.care.preflight.stores import look_at_store
from include.fts.client.open import connected_credential, open_client, server_url
from include.gateway.client.open import open_gateway
from include.gateway.client.values import LeaseInfo
from include.ledger.engine import shown
from include.ledger.migrate import version
from include.settings.urls import base_url
from include.site.site import Site

LIMIT_S = 5.0
"""How long one part may take to answer."""


@dataclass(frozen=True, slots=True)
class Health:
    """What one look found.

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
    settings = site.settings
    gateways: dict[str, list[str]] = {}
    for fqrn, repository in settings.repositories.items():
        gateways.setdefault(repository.gateway, []).append(fqrn)
    leases: dict[str, list[LeaseInfo]] = {}
    used = {repository.store for repository in settings.repositories.values()} | {
        slot.store for slot in settings.slots.values()
    }
    checks = [
        Check("ledger", "ledger", partial(_ledger, site), "Start its server."),
        *(
            Check("store", name, partial(look_at_store, site, name, source=False), "Check that the store runs.")
            for name in sorted(used)
        ),
        *(
            Check("gateway", name, partial(_gateway, site, name, fqrns, leases), "Check that the gateway runs.")
            for name, fqrns in sorted(gateways.items())
        ),
        *(
            Check("fts", name, partial(_fts, site, name), "Check that the FTS server runs; *Test* of its connection.")
            for name in (settings.stageout.fts if settings.sites else ())
        ),
    ]
    report = run(checks, limit_s=limit_s)
    # a gateway that answers later than the limit still writes into its own dictionary
    return Health(report, dict(leases))


def _ledger(site: Site) -> Iterator[Finding]:
    engine = site.ledger
    yield Finding("ledger", "ledger", Severity.OK, f"{shown(engine.url)} answers, tables of version {version(engine)}")


def _gateway(site: Site, name: str, fqrns: list[str], leases: dict[str, list[LeaseInfo]]) -> Iterator[Finding]:
    found, port = site.secrets.get(name), site.settings.gateway.port
    with open_gateway(found, port=port, timeout_s=LIMIT_S, retries=0) as client:
        held = client.leases()
    for fqrn in fqrns:
        leases[fqrn] = [lease for lease in held if lease.repository == fqrn]
    yield Finding("gateway", name, Severity.OK, f"{base_url(found, port=port)} answers")


def _fts(site: Site, name: str) -> Iterator[Finding]:
    connection = site.secrets.get(name)
    with open_client(connection, connected_credential(connection), timeout_s=LIMIT_S, retries=0) as client:
        client.whoami()
    yield Finding("fts", name, Severity.OK, f"{server_url(connection)} answers")
