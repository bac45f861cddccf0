"""Additions to Airflow's pages, imported by every component. Links of tasks are in `operators/links.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from hooks import dag_runs, preload
from hooks.priority import NightFirst
from include.pages.registry import PREFIX, STAGEOUT_API, external_views


class LazyApp:
    """A web application that is made at the first request: only the API server pays for it."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self._made = made

    @cached_property
    def app(self) -> Any:
        return self._made()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def pages() -> Any:
    """The pages, `/health` and `/metrics`."""
    from hooks.logins import caller, dags, logged_in
    from include.monitoring.metrics import routes
    from include.pages.app import create_app

    app = create_app(caller, site(), dags)
    # these judge a request by themselves: a token is enough for them
    app.router.routes.extend(routes(site(), logged_in))
    return app


def stageout_api() -> Any:
    """The REST API of stage-out."""
    from hooks.logins import caller
    from include.stageout.rest.app import create_api

    return create_api(caller, site())


@cache
def site() -> Any:
    """Gives the deployment to the applications."""
    from hooks.secrets import AirflowSecrets
    from hooks.task import open_site
    from include.pages.asked import OpenSite

    return OpenSite(lambda: open_site(AirflowSecrets()))


class NightshiftPlugin(AirflowPlugin):
    """The plugin of Nightshift."""

    name = "nightshift"
    priority_weight_strategies: list[Any] = [NightFirst]  # noqa: RUF012 (Airflow declares it so)
    # the first that fits answers: what has a prefix below ours comes before it
    fastapi_apps: list[Any] = [  # noqa: RUF012
        {"app": LazyApp(stageout_api), "url_prefix": STAGEOUT_API, "name": "Nightshift stage-out"},
        {"app": LazyApp(pages), "url_prefix": PREFIX, "name": "Nightshift"},
    ]
    external_views: list[Any] = external_views()
    listeners: list[Any] = [preload, dag_runs]  # noqa: RUF012
