"""What Nightshift adds to Airflow's pages, imported by every component. Links of tasks are in `operators/links.py`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from hooks import run_notes
from hooks.priority import NightFirst
from include.pages.registry import PREFIX, external_views


class LazyPages:
    """The app of the pages, `/health` and `/metrics`, made at the first request: only the API server pays for it."""

    @cached_property
    def app(self) -> Any:
        from airflow.api_fastapi.core_api.security import get_user

        from hooks.secrets import AirflowSecrets
        from hooks.site import open_site
        from include.care.metrics.routes import routes
        from include.pages.app import create_app
        from include.pages.asked import OpenSite

        site = OpenSite(lambda: open_site(AirflowSecrets()))
        app = create_app(get_user, site)
        # these judge a request by themselves: a token is enough for them
        app.router.routes.extend(routes(site, logged_in))
        return app

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
    # the first that fits answers: what has a prefix below ours comes before it
    fastapi_apps: list[Any] = [  # noqa: RUF012
        {"app": LazyPages(), "url_prefix": PREFIX, "name": "Nightshift"}
    ]
    external_views: list[Any] = external_views()
    listeners: list[Any] = [run_notes]  # noqa: RUF012
