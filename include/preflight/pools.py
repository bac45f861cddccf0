"""Airflow's pools before a night, by its REST API: a task whose pool is missing waits for ever, and says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from include.preflight.findings import Finding, Severity
from include.preflight.stores import TIMEOUT_S
from include.settings.model import Site
from include.settings.pools import Pool
from include.settings.pools import pools as pools_of
from include.settings.secrets import Secrets
from include.settings.urls import base_url

CURE = "Run: nightshift settings pools --json > pools.json && airflow pools import pools.json"


def look_at_pools(site: Site, secrets: Secrets) -> Iterator[Finding]:
    """Compare the pools of the site with those that Airflow has."""
    if site.airflow_connection is None:
        cure = "Name a connection to Airflow's API in `airflow_connection`."
        yield Finding("pools", "", Severity.WARNING, "not looked at: no way to ask Airflow is configured", cure)
        return
    found = secrets.get(site.airflow_connection)
    url = base_url(found, port=8080)
    yield from judged_pools(pools_of(site), _slots(url, found.login or "", found.password or ""))


def judged_pools(wanted: Iterable[Pool], there: Mapping[str, int]) -> Iterator[Finding]:
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


def _slots(url: str, login: str, password: str) -> Mapping[str, int]:
    import requests

    with requests.Session() as session:
        session.trust_env = False
        token = session.post(
            f"{url}/auth/token",
            json={"username": login, "password": password},
            timeout=TIMEOUT_S,
            allow_redirects=False,
        )
        if token.status_code != 201:
            raise PermissionError(f"Airflow at {url} refuses the login of {login}: HTTP {token.status_code}")
        headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
        reply = session.get(f"{url}/api/v2/pools", params={"limit": 100}, headers=headers, timeout=TIMEOUT_S)
        reply.raise_for_status()
        return {str(one["name"]): int(one["slots"]) for one in reply.json()["pools"]}
