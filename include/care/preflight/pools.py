"""Airflow's pools before a night, by its REST API, and how their slots bound it.

A task whose pool is missing waits for ever, without a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date

from include.airflow_api import site_api
from include.care.preflight.findings import Finding, Severity
from include.care.preflight.stores import TIMEOUT_S
from include.nightlies.records.builds import preceding_build
from include.nightlies.records.publications import publications_of_build
from include.nightlies.rules.build_order import BuildKey
from include.nightlies.rules.states import State
from include.settings.model import SiteSettings
from include.settings.pools import PoolSettings
from include.settings.pools import pools as pools_of
from include.settings.secrets import Secrets
from include.site.site import Site

PREPARING = "prepare"
"""The phase of a publication that takes a slot of the pool of that name; all others take one of `publish`."""
BUILDS = 14
"""Of a slot that are looked through: one that has only begun, or was unchanged, shows no bound."""
CURE = "Run: nightshift settings pools --json > pools.json && nightshift lab airflow pools import pools.json"


def look_at_pools(settings: SiteSettings, secrets: Secrets) -> Iterator[Finding]:
    """Compare the pools of the site with those that Airflow has."""
    if settings.airflow_connection is None:
        cure = "Name a connection to Airflow's API in `airflow_connection`."
        yield Finding("pools", "", Severity.WARNING, "not checked: no access to Airflow is configured", cure)
        return
    reply = site_api(settings, secrets, timeout_s=TIMEOUT_S).ask("GET", "/pools", params={"limit": 100})
    yield from judged_pools(pools_of(settings), {str(pool["name"]): int(pool["slots"]) for pool in reply["pools"]})


def judged_pools(wanted: Iterable[PoolSettings], there: Mapping[str, int]) -> Iterator[Finding]:
    """What is missing, and what is smaller than it should be; larger is the operator's affair."""
    for pool in wanted:
        slots = there.get(pool.name)
        if slots is None:
            yield Finding("pool", pool.name, Severity.ERROR, "missing: its tasks would never start", CURE)
        elif slots < 1:
            yield Finding("pool", pool.name, Severity.ERROR, "has no slots: its tasks would never start", CURE)
        elif slots < pool.slots:
            yield Finding("pool", pool.name, Severity.WARNING, f"has {slots} slots, {pool.slots} are meant", CURE)
        else:
            yield Finding("pool", pool.name, Severity.OK, f"{slots} slots")


def look_at_bounds(site: Site, slot: str) -> Iterator[Finding]:
    """Say what bounds the nights of a slot, by the newest of its builds of which something was published."""
    slots = {pool.name: pool.slots for pool in pools_of(site.settings)}
    before = BuildKey(date.max, "")
    for _ in range(BUILDS):
        build = preceding_build(site.ledger, slot, before)
        if build is None:
            break
        done = publications_of_build(site.ledger, build.id)
        work = [
            publication.seconds for publication in done if publication.state is State.PUBLISHED and publication.seconds
        ]
        if work:
            shown = ", ".join(f"{name} {seconds / 60:.1f} min" for name, seconds in night_bounds(work, slots))
            yield Finding("bounds", slot, Severity.OK, f"{len(work)} artifacts of {build.key} take at least: {shown}")
            return
        before = build.key
    yield Finding("bounds", slot, Severity.OK, f"not known: nothing of its last {BUILDS} builds was published")


def night_bounds(work: Sequence[Mapping[str, float]], slots: Mapping[str, int]) -> list[tuple[str, float]]:
    """What bounds a night, and for how many seconds it takes at least by each bound; the longest first.

    Args:
        work: Seconds by phase of each artifact.
        slots: Of Airflow's pools, by name.
    """
    preparing = [seconds.get(PREPARING, 0.0) for seconds in work]
    publishing = [sum(seconds.values()) - seconds.get(PREPARING, 0.0) for seconds in work]
    bounds = {
        f"preparing in {slots['prepare']} slots": sum(preparing) / slots["prepare"],
        f"publishing in {slots['publish']} slots": sum(publishing) / slots["publish"],
        "the longest artifact": max(map(sum, zip(preparing, publishing, strict=True))),
    }
    return sorted(bounds.items(), key=lambda bound: -bound[1])
