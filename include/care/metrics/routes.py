"""`/health` and `/metrics`, for the web application that is mounted in Airflow's API server.

Neither is open: both name stores, gateways and repositories, and a look costs requests to them. `/health` takes a login
of Airflow or the token, so that a probe can send the token, too; `/metrics` takes the token alone, since Prometheus has
no login. The token is the password of the connection `metrics_connection`; without one `/metrics` answers 401 always.
For a probe without any credentials there is Airflow's own `/api/v2/monitor/health`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from include.care.metrics.scrape import Scrape
from include.errors import NightshiftError
from include.settings.errors import SettingsError
from include.site.site import Site

_NOT_KEPT = {"Cache-Control": "no-store"}


def routes(site: Callable[[], Site], logged_in: Callable[[Request], Awaitable[bool]]) -> list[Route]:
    """The routes.

    Args:
        site: Gives the deployment; called in a thread.
        logged_in: Whether a request comes from a user of Airflow.
    """
    calls = _Calls(site, logged_in)
    return [Route("/health", calls.health), Route("/metrics", calls.metrics)]


class _Calls:
    def __init__(self, site: Callable[[], Site], logged_in: Callable[[Request], Awaitable[bool]]) -> None:
        self._site, self._logged_in = site, logged_in
        self._scrape = Scrape(site)

    async def health(self, request: Request) -> Response:
        """Whether every part answers: HTTP 200, or 503, with a finding for each."""
        if not await self._has_token(request) and not await self._logged_in(request):
            return _refused()
        try:
            report = (await asyncio.to_thread(self._scrape.health)).report
        except NightshiftError as error:
            return _failed(error)
        status = "ok" if report.ready else "failed"
        return JSONResponse({"status": status, **report.to_json()}, 200 if report.ready else 503, _NOT_KEPT)

    async def metrics(self, request: Request) -> Response:
        """The figures, in the text format of Prometheus."""
        if not await self._has_token(request):
            return _refused()
        try:
            page = await asyncio.to_thread(self._scrape.page)
        except NightshiftError as error:
            return _failed(error)
        return Response(page, headers={**_NOT_KEPT, "Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            return False
        token = await asyncio.to_thread(self._token)
        return token is not None and hmac.compare_digest(given.strip().encode("latin-1"), token.encode())

    def _token(self) -> str | None:
        try:
            site = self._site()
            name = site.settings.metrics_connection
            return site.secrets.get(name).password or None if name else None
        except SettingsError:
            return None


def _refused() -> Response:
    return JSONResponse({"detail": "Not authenticated"}, 401, {"WWW-Authenticate": "Bearer", **_NOT_KEPT})


def _failed(error: NightshiftError) -> Response:
    return JSONResponse({"status": "failed", "detail": str(error)}, 503, _NOT_KEPT)
