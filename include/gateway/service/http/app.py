"""The gateway's routes (docs/formats.md, gateway): leases, commits, payloads, administration, as the stock gateway
answers them.

Beyond the stock gateway: conflicts by path component, a lease belongs to the key that took it, renewal, commits in
groups, repeatable and on a base that is checked, malformed paths refused, payloads verified, who waits, and figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from include.gateway.protocol import (
    API,
    COLLECTION,
    LEASES,
    LEASES_BY_PATH,
    PAYLOADS,
    RELOAD,
    REPOSITORIES,
    WAITING,
)
from include.gateway.service import requests
from include.gateway.service.clock import Clock, SystemClock
from include.gateway.service.commits.points import OnPoint, from_environment, pass_by
from include.gateway.service.commits.queue import Committer
from include.gateway.service.config import ConfigError, ServiceConfig
from include.gateway.service.http.admin_calls import AdminCalls, StatusCalls
from include.gateway.service.http.lease_calls import LeaseCalls
from include.gateway.service.http.serving import ReadConfig, Serving
from include.gateway.service.http.tracing import Tracing, note
from include.gateway.service.leases.lease_table import LeaseTable
from include.gateway.service.leases.writer import StateError
from include.gateway.service.requests import Malformed, Refused


def allowed_methods(routes: Iterable[BaseRoute], scope: Any) -> list[str]:
    """The methods that the path of ``scope`` knows, sorted, with OPTIONS; none if it is not a path of ours."""
    methods = {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(methods | {"OPTIONS"}) if methods else []


def redirect_target(routes: Iterable[BaseRoute], scope: Any) -> str | None:
    """The same path with its last slash taken off, if that is a route for this method."""
    path: str = scope["path"]
    if not path.endswith("/") or len(path) == 1:
        return None
    bare = {**scope, "path": path.rstrip("/"), "raw_path": None}
    if (
        path.rstrip("/").count("/") > 3
        or not bare["path"].isascii()
        or any(character in bare["path"] for character in '"<>\\\r\n')
    ):
        return None
    fits = any(route.matches(bare)[0] is Match.FULL for route in routes if isinstance(route, Route))
    return bare["path"] if fits else None


Handler = Callable[[Request], Awaitable[Response]]

CLOCK_S = 5.0


def create_app(
    config: ServiceConfig,
    *,
    committer: Committer | None = None,
    clock: Clock | None = None,
    table: LeaseTable | None = None,
    on_point: OnPoint | None = None,
    read_config: ReadConfig | None = None,
) -> Starlette:
    """The ASGI application. Without a ``table`` it opens (and at its end closes) the state of the configuration.

    ``read_config`` reads the configuration again, on SIGHUP and for ``POST /reload``. Raises ConfigError if another
    gateway holds that state, or one of the repositories (``ownership.py``).
    """
    own_table = table is None
    if table is None:
        table = LeaseTable(config.state, clock=clock or SystemClock(), max_lease_time_s=config.max_lease_time_s)
    on_point = on_point or from_environment()
    if committer is None:
        try:
            committer = _started(config, table, looked_at=on_point is not pass_by)
        except ConfigError:
            if own_table:
                table.close()
            raise
    serving = Serving(config, table, committer, on_point, read_config)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(_watch_clock(serving))
        _reload_on_hangup(serving)
        yield
        watch.cancel()
        await serving.commits.close()
        serving.payloads.close()
        close = getattr(committer, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
        if own_table:
            table.close()

    app = Starlette(routes=[_route(*call) for call in routes(serving)], lifespan=lifespan)
    app.router.redirect_slashes = False
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(Malformed, _malformed)
    app.add_exception_handler(StateError, _state_trouble)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(Tracing, metrics=serving.metrics, limiter=serving.limiter, limits=config.limits)
    app.state.serving = serving
    return app


def routes(serving: Serving) -> list[tuple[str, str, Handler]]:
    """Every call: method, path, handler. ``openapi.py`` describes the same."""
    status, leases, admin = StatusCalls(serving), LeaseCalls(serving), AdminCalls(serving)
    return [
        ("GET", "/health", status.health),
        ("GET", "/ready", status.ready),
        ("GET", "/metrics", status.metrics),
        ("GET", "/openapi.json", status.openapi),
        ("GET", API, admin.welcome),
        ("GET", f"{API}{REPOSITORIES}", admin.repositories),
        ("GET", f"{API}{REPOSITORIES}/{{name}}", admin.repository),
        ("POST", f"{API}{REPOSITORIES}/{{name}}", admin.enable),
        ("GET", f"{API}{LEASES}", leases.leases),
        ("POST", f"{API}{LEASES}", leases.acquire),
        ("GET", f"{API}{LEASES}/{{token}}", leases.lease),
        ("POST", f"{API}{LEASES}/{{token}}", leases.commit),
        ("PATCH", f"{API}{LEASES}/{{token}}", leases.renew),
        ("DELETE", f"{API}{LEASES}/{{token}}", leases.drop),
        ("DELETE", f"{API}{LEASES_BY_PATH}/{{path:path}}", admin.drop_by_path),
        ("GET", f"{API}{WAITING}", leases.waiting),
        ("POST", f"{API}{PAYLOADS}", serving.payloads.legacy),
        ("POST", f"{API}{PAYLOADS}/{{token}}", serving.payloads.by_token),
        ("POST", f"{API}{COLLECTION}", admin.collect),
        ("POST", f"{API}{RELOAD}", admin.reload),
    ]


def _route(method: str, path: str, handler: Handler) -> Route:
    route = Route(path, handler)
    route.methods = {method}  # given to it, GET would bring HEAD with it, which the stock gateway refuses
    return route


def _started(config: ServiceConfig, table: LeaseTable, *, looked_at: bool) -> Committer:
    from include.gateway.service.commits.committer import StoreCommitter
    from include.gateway.service.commits.process import CommitterApart

    committer: CommitterApart | StoreCommitter
    if config.recipe is not None:
        committer = CommitterApart(config, table, looked_at=looked_at)
    else:
        committer = StoreCommitter(config, table)
    committer.start()
    return committer


async def _watch_clock(serving: Serving) -> None:
    """Notice steps of the wall clock also while no calls come."""
    while True:
        await asyncio.sleep(CLOCK_S)
        with contextlib.suppress(StateError):
            if await asyncio.wrap_future(serving.table.notice_clock()):
                serving.metrics.clock_steps.inc()


def _reload_on_hangup(serving: Serving) -> None:
    def hang_up() -> None:
        task = asyncio.get_running_loop().run_in_executor(None, _reload, serving)
        waiting.add(task)
        task.add_done_callback(waiting.discard)

    waiting: set[asyncio.Future[None]] = set()
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def _reload(serving: Serving) -> None:
    try:
        serving.reload()
    except ConfigError as error:
        serving.refuse_configuration(error)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - registered for this class
    note(request, "refused", reason=error.reason, **({"detail": error.detail} if error.detail else {}))
    return requests.error(error.reason, error.detail)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, Malformed)  # noqa: S101 - registered for this class
    return requests.plain(error.status, error.text, headers=error.headers)


async def _state_trouble(request: Request, error: Exception) -> Response:
    note(request, "state trouble", detail=str(error))
    return requests.error(f"could not begin transaction: {error}")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
    methods = allowed_methods(request.app.routes, request.scope)
    if error.status_code == 405 or methods:
        allow = {"Allow": ", ".join(methods)}
        if request.method == "OPTIONS":
            return Response(status_code=200, headers=allow)
        return requests.plain(405, "Method Not Allowed", headers=allow)
    target = redirect_target(request.app.routes, request.scope)
    if target is not None:
        return requests.moved(301 if request.method == "GET" else 308, target)
    if error.status_code == 404:
        return requests.plain(404, "404 page not found")
    return requests.plain(error.status_code, "invalid request")
