"""Whether a request to the API server comes from a user of Airflow."""

from __future__ import annotations

from starlette.requests import Request


async def logged_in(request: Request) -> bool:
    """By the cookie of a login or a token of Airflow's API, as Airflow's own routes judge them."""
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
    from fastapi import HTTPException

    try:
        await get_user(request, None, await bearer_scheme(request))
    except HTTPException:
        return False
    return True
