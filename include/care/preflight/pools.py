"""Airflow's pools before a night, by its REST API: a task whose pool is missing waits for ever, without a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from include.care.preflight.airflow import ask_airflow
from include.care.preflight.findings import Finding, Severity
from include.settings.model import SiteSettings
from include.settings.pools import PoolSettings
from include.settings.pools import pools as pools_of
from include.settings.secrets import Secrets

CURE = "Run: nightshift settings pools --json > pools.json && nightshift lab airflow pools import pools.json"


def look_at_pools(settings: SiteSettings, secrets: Secrets) -> Iterator[Finding]:
    """Compare the pools of the site with those that Airflow has."""
    if settings.airflow_connection is None:
        cure = "Name a connection to Airflow's API in `airflow_connection`."
        yield Finding("pools", "", Severity.WARNING, "not checked: no access to Airflow is configured", cure)
        return
    reply = ask_airflow(settings, secrets, "pools", {"limit": 100})
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
