"""Airflow as commands reach it: its REST API, and the connections that it has and this shell has not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, partial

from include.airflow_api import AirflowApi, AirflowError, site_api
from include.care.preflight.connections import Asked
from include.care.preflight.findings import Finding
from include.care.preflight.stores import TIMEOUT_S
from include.cli.lab import lab_part
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets


def airflow_api(settings: SiteSettings, secrets: Secrets, connection: str = "") -> AirflowApi:
    """Airflow as the user of a connection; by default as the administrator of the lab here, else by the site's own.

    Raises:
        SettingsError: No connection is named, or it is not usable.
    """
    here = None if connection else lab_part("here")
    administrator: AirflowApi | None = here.administrator() if here else None
    return administrator or site_api(settings, secrets, connection)


def look_at_lab() -> Iterator[Finding]:
    """Compare the settings with those that the programs of the lab here were started with, if it runs."""
    if here := lab_part("here"):
        yield from here.findings()


def ask_api(settings: SiteSettings, secrets: Secrets) -> Asked:
    """Asks Airflow's API for connections; the user needs the right to read them."""

    api = cache(partial(site_api, settings, secrets, timeout_s=TIMEOUT_S))

    def ask(name: str) -> bool | None:
        if settings.airflow_connection is None:
            return None
        try:
            return api().has_connection(name)
        except (AirflowError, SettingsError):
            return None

    return ask


def defined_in_airflow(settings: SiteSettings, secrets: Secrets) -> Asked:
    """Asks the API, then the database of the lab here; None where neither answers."""
    api, here = ask_api(settings, secrets), lab_part("here")

    @cache
    def of_lab() -> frozenset[str] | None:
        known: frozenset[str] | None = here.defined(os.environ) if here else None
        return known

    def ask(name: str) -> bool | None:
        answer = api(name)
        if answer is None and (known := of_lab()) is not None:
            return name in known
        return answer

    return ask
