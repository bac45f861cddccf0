"""Airflow as commands reach it: its REST API, and the connections that it has and this shell has not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from include.care.preflight.airflow import Asked, ask_api
from include.care.preflight.findings import Finding, Severity
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.settings.urls import base_url

if TYPE_CHECKING:
    from include.lab.airflow_api import AirflowApi


def airflow_api(settings: SiteSettings, secrets: Secrets, connection: str = "") -> AirflowApi:
    """Airflow as the user of a connection; by default as the administrator of the lab here, else by the site's own.

    Raises:
        SettingsError: No connection is named, or it is not usable.
    """
    from include.lab.airflow_api import AirflowApi
    from include.lab.environment import ADMIN, Lab, LabFolders

    if not connection and os.access(LabFolders.from_environment(os.environ).secrets, os.R_OK):
        lab = Lab.from_environment()
        return AirflowApi(lab.airflow_url, ADMIN, lab.secrets.admin_password)
    name = connection or settings.airflow_connection
    if not name:
        raise SettingsError("no connection names a user of Airflow's API: set airflow_connection, or give --connection")
    user = secrets.get(name)
    return AirflowApi(base_url(user, port=8080), user.login or "", user.password or "")


def look_at_lab() -> Iterator[Finding]:
    """Compare the settings with those that the programs of the lab here were started with, if it runs."""
    from include.lab.environment import MARK, Lab, LabFolders
    from include.lab.lifecycle import changed

    place = LabFolders.from_environment(os.environ)
    if MARK in os.environ or not os.access(place.secrets, os.R_OK):
        return
    if names := changed(Lab.from_environment()):
        seen = f"its programs were started with other settings: {', '.join(names)}"
        yield Finding("lab", str(place.var), Severity.ERROR, seen, "Run: nightshift lab restart")


def defined_in_airflow(settings: SiteSettings, secrets: Secrets) -> Asked:
    """Asks one after the other; None where neither answers."""
    api = ask_api(settings, secrets)

    @cache
    def of_lab() -> frozenset[str] | None:
        from include.lab.connections import defined

        return defined(os.environ)

    def ask(name: str) -> bool | None:
        answer = api(name)
        if answer is None and (known := of_lab()) is not None:
            return name in known
        return answer

    return ask
