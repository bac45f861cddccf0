"""What Nightshift adds to Airflow's pages, imported by every component. Links of tasks are in `operators/links.py`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from hooks import run_notes
from hooks.priority import NightFirst

PREFIX = "/nightshift"


class LazyRoutes:
    """`/health` and `/metrics`, made at the first request: only the API server pays for them."""

    @cached_property
    def app(self) -> Any:
        from functools import cache

        from starlette.applications import Starlette

        from hooks.secrets import AirflowSecrets
        from hooks.site import open_site
        from include.care.metrics.routes import routes

        return Starlette(routes=routes(cache(lambda: open_site(AirflowSecrets())), logged_in))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


async def logged_in(request: Any) -> bool:
    """Whether a request comes from a user of Airflow: by the cookie of a login or a token of Airflow's API."""
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
    from starlette.exceptions import HTTPException

    try:
        await get_user(request, None, await bearer_scheme(request))
    except HTTPException:
        return False
    return True


class NightshiftPlugin(AirflowPlugin):
    """One plugin for all of Nightshift."""

    name = "nightshift"
    priority_weight_strategies: list[Any] = [NightFirst]  # noqa: RUF012 (Airflow declares it so)
    fastapi_apps: list[Any] = [{"app": LazyRoutes(), "url_prefix": PREFIX, "name": "Nightshift"}]  # noqa: RUF012
    listeners: list[Any] = [run_notes]  # noqa: RUF012
