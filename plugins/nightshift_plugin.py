"""What Nightshift adds to Airflow's pages, imported by every component. Links of tasks are in `operators/links.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from hooks import preload, run_notes, run_states
from hooks.priority import NightFirst
from include.pages.registry import PREFIX, STAGEOUT_API, external_views

if TYPE_CHECKING:
    from include.pages.asked import AskDag
    from include.stageout.rest.users import StageoutUser


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
    from include.care.metrics.routes import routes
    from include.pages.app import create_app

    app = create_app(caller(), site(), dags())
    # these judge a request by themselves: a token is enough for them
    app.router.routes.extend(routes(site(), logged_in))
    return app


def stageout_api() -> Any:
    """The REST API of stage-out."""
    from include.stageout.rest.app import create_api

    return create_api(caller(), site())


@cache
def site() -> Any:
    """Gives the deployment to the applications."""
    from hooks.secrets import AirflowSecrets
    from hooks.site import open_site
    from include.pages.asked import OpenSite

    return OpenSite(lambda: open_site(AirflowSecrets()))


@cache
def caller() -> Callable[..., StageoutUser]:
    """A dependency of FastAPI: the user of Airflow who asks. Who may edit pools is an operator of stage-out."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends

    from include.stageout.rest.users import StageoutUser

    def found(user: Any = Depends(get_user)) -> StageoutUser:  # noqa: B008 - FastAPI's form
        return StageoutUser(user.get_name(), get_auth_manager().is_authorized_pool(method="PUT", user=user))

    return found


@cache
def dags() -> Callable[..., AskDag]:
    """A dependency of FastAPI: whether the user who asks may start runs of a DAG, and then whether it is paused."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.api_fastapi.core_api.security import get_user
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from fastapi import Depends
    from sqlalchemy import select

    from include.dag_runs import DagState

    def found(user: Any = Depends(get_user)) -> AskDag:  # noqa: B008 - FastAPI's form
        def ask(dag_id: str) -> DagState:
            if not get_auth_manager().is_authorized_dag(
                method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id), user=user
            ):
                return DagState(dag_id, allowed=False, paused=None)
            with create_session() as session:
                paused = session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id, ~DagModel.is_stale))
            return DagState(dag_id, paused=paused)

        return ask

    return found


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
        {"app": LazyApp(stageout_api), "url_prefix": STAGEOUT_API, "name": "Nightshift stage-out"},
        {"app": LazyApp(pages), "url_prefix": PREFIX, "name": "Nightshift"},
    ]
    external_views: list[Any] = external_views()
    listeners: list[Any] = [preload, run_notes, run_states]  # noqa: RUF012
