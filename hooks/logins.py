"""Callers of our web applications and their rights, as Airflow's login says. Only the API server imports it."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException
from sqlalchemy import select
from starlette.requests import Request

from include.dag_runs import DagState
from include.pages.asked import AskDag
from include.stageout.rest.questions import EDITED_DAG, StageoutUser


async def user(request: Request) -> BaseUser:
    """Return the user of a request by a token of Airflow's API or the cookie of a login; raise 401 without one."""
    try:
        return await get_user(request, None, await bearer_scheme(request))
    except HTTPException as error:
        # Airflow raises 403 for a token that is malformed or revoked
        raise HTTPException(401, error.detail, {"WWW-Authenticate": "Bearer"}) from None


User = Annotated[BaseUser, Depends(user)]


def caller(user: User) -> StageoutUser:
    """Return the user with the rights that count in stage-out (docs/decisions/0031)."""
    manager = get_auth_manager()
    operator = manager.is_authorized_pool(method="PUT", user=user)
    editor = manager.is_authorized_dag(method="PUT", details=DagDetails(id=EDITED_DAG), user=user)
    return StageoutUser(user.get_name(), operator, editor)


def dags(user: User) -> AskDag:
    """Return what tells whether the user may start runs of a DAG, and then whether it is paused."""

    def ask(dag_id: str) -> DagState:
        if not get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id), user=user
        ):
            return DagState(dag_id, allowed=False, paused=None)
        with create_session() as session:
            paused = session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id, ~DagModel.is_stale))
        return DagState(dag_id, paused=paused)

    return ask


async def logged_in(request: Request) -> bool:
    """Return whether a request comes from a user of Airflow."""
    try:
        await user(request)
    except HTTPException:
        return False
    return True
