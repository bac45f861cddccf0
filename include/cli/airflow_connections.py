"""Whether Airflow has a connection that this shell does not: by its REST API, or in the database of the lab here."""

from __future__ import annotations

import os
from functools import cache

from include.care.preflight.airflow import Asked, ask_api
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets


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
