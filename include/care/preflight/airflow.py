"""Asks Airflow by its REST API, as the user of the site's `airflow_connection`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from include.care.preflight.stores import TIMEOUT_S
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.settings.urls import base_url

if TYPE_CHECKING:
    import requests

Asked = Callable[[str], bool | None]
"""Whether Airflow has a connection of this id; None where it cannot be asked."""


def ask_airflow(settings: SiteSettings, secrets: Secrets, what: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """One list of Airflow's REST API. Raises SettingsError, PermissionError, requests.RequestException."""
    reply = _get(settings, secrets, what, params)
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer


def ask_api(settings: SiteSettings, secrets: Secrets) -> Asked:
    """Asks for connections; the user needs the right to read them."""

    def ask(name: str) -> bool | None:
        import requests

        if settings.airflow_connection is None:
            return None
        try:
            reply = _get(settings, secrets, f"connections/{quote(name, safe='')}", {})
        except (requests.RequestException, SettingsError, PermissionError, KeyError, ValueError):
            return None
        return {200: True, 404: False}.get(reply.status_code)

    return ask


def _get(settings: SiteSettings, secrets: Secrets, what: str, params: Mapping[str, Any]) -> requests.Response:
    import requests

    found = secrets.get(settings.airflow_connection or "")
    url, login = base_url(found, port=8080), found.login or ""
    with requests.Session() as session:
        session.trust_env = False
        token = session.post(
            f"{url}/auth/token",
            json={"username": login, "password": found.password or ""},
            timeout=TIMEOUT_S,
            allow_redirects=False,
        )
        if token.status_code != 201:
            raise PermissionError(f"Airflow at {url} refuses the login of {login}: HTTP {token.status_code}")
        headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
        return session.get(f"{url}/api/v2/{what}", params=params, headers=headers, timeout=TIMEOUT_S)
