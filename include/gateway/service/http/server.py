"""The gateway service as an app and as a process, bound to loopback unless configured otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from include.gateway.protocol import API, COLLECTION, LEASES, LEASES_BY_PATH, PAYLOADS, RELOAD, REPOSITORIES, WAITING
from include.gateway.service import requests
from include.gateway.service.clock import Clock, SystemClock
from include.gateway.service.commits.process import CommitterApart
from include.gateway.service.commits.queue import Committer, OnPoint, pass_by
from include.gateway.service.config import ConfigError, ReadConfig, ServiceConfig
from include.gateway.service.http.admin_calls import AdminCalls, StatusCalls
from include.gateway.service.http.lease_calls import LeaseCalls
from include.gateway.service.http.serving import ServiceContext, log_not_served
from include.gateway.service.leases.lease_rows import StateError
from include.gateway.service.leases.lease_table import LeaseTable
from include.gateway.service.requests import Malformed, Refused
from include.gateway.service.telemetry import Tracing, note
from include.http_bounds import BoundedHttp, ConnectionLimits
from include.http_calls import is_loopback


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
    read_config: ReadConfig,
    *,
    committer: Committer | None = None,
    clock: Clock | None = None,
    table: LeaseTable | None = None,
    on_point: OnPoint = pass_by,
) -> Starlette:
    """The ASGI application. Without a ``table`` it opens (and at its end closes) the state of the configuration.

    ``read_config`` is called now, and on SIGHUP and for ``POST /reload``. Raises ConfigError if another gateway holds
    that state, or one of the repositories (``ownership.py``), and what reading the configuration raises.
    """
    config, own_table = read_config(), table is None
    if table is None:
        table = LeaseTable(config.state, clock=clock or SystemClock(), max_lease_time_s=config.max_lease_time_s)
    if committer is None:
        try:
            committer = CommitterApart(read_config, config, table, looked_at=on_point is not pass_by)
            committer.start()
        except ConfigError:
            if own_table:
                table.close()
            raise
    serving = ServiceContext(config, table, committer, read_config, on_point)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(_watch_clock(serving))
        _reload_on_hangup(serving)
        yield
        watch.cancel()
        await serving.commits.close()
        serving.payloads.close()
        await asyncio.to_thread(committer.close)
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


def routes(serving: ServiceContext) -> list[tuple[str, str, Handler]]:
    """Every call: method, path, handler. ``admin_calls.document`` describes the same."""
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


async def _watch_clock(serving: ServiceContext) -> None:
    """Notice steps of the wall clock also while no calls come."""
    while True:
        await asyncio.sleep(CLOCK_S)
        with contextlib.suppress(StateError):
            if await asyncio.wrap_future(serving.table.notice_clock()):
                serving.metrics.clock_steps.inc()


def _reload_on_hangup(serving: ServiceContext) -> None:
    def hang_up() -> None:
        task = asyncio.get_running_loop().run_in_executor(None, _reload, serving)
        waiting.add(task)
        task.add_done_callback(waiting.discard)

    waiting: set[asyncio.Future[None]] = set()
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def _reload(serving: ServiceContext) -> None:
    try:
        serving.reload()
    except ConfigError as error:
        log.error("configuration refused, the old one stays", extra={"fields": {"detail": str(error)}})


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


log = logging.getLogger(__name__)

_SWITCH_S = 0.001  # a thread that merges lets lease calls in between so often; Python's own 5 ms add up to their reply


def serve(
    read_config: ReadConfig,
    *,
    committer: Committer | None = None,
    clock: Clock | None = None,
    ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    on_point: OnPoint = pass_by,
) -> None:
    """Serve until SIGTERM or SIGINT, or until ``stop`` is set; ``ready`` gets the URL once connections are accepted.

    Raises ConfigError if the port or the state is taken, the certificate cannot be used, or the address is open to
    others with neither a certificate nor ``insecure``.
    """
    config = read_config()
    if not (config.certificate or config.insecure or is_loopback(config.host)):
        raise ConfigError(
            f"gateway does not listen on {config.host}: requests are not encrypted; set `gateway.certificate` and"
            " `gateway.private_key`, or `gateway.insecure` where the network is trusted"
        )
    tls = _tls(config)
    sys.setswitchinterval(_SWITCH_S)
    app = create_app(read_config, committer=committer, clock=clock, on_point=on_point)
    metrics = app.state.serving.metrics
    limits = config.limits
    bounds = ConnectionLimits(limits.head_s, limits.connections, lambda limit: metrics.limited.labels(limit).inc())
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="on", workers=1, ws="none",
            http=partial(BoundedHttp, bounds=bounds),  # type: ignore[arg-type]
            ssl_context_factory=(lambda *_: tls) if tls else None,
            backlog=512,
            timeout_keep_alive=75, timeout_graceful_shutdown=round(config.stop_timeout_s),
        )
    )  # fmt: skip
    logging.getLogger("uvicorn.access").disabled = True  # it logs URLs, and the protocol puts tokens into them
    if stop is not None:
        threading.Thread(target=_stop_when, args=(stop, server), daemon=True).start()
    log.info("gateway listening", extra={"fields": {"url": url, "repositories": sorted(config.repositories)}})
    log_not_served(config)
    if ready is not None:
        ready(url)
    server.run(sockets=[listener])


def _tls(config: ServiceConfig) -> ssl.SSLContext | None:
    if config.certificate is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(config.certificate, config.private_key)
    except OSError as error:
        raise ConfigError(
            f"gateway certificate {config.certificate}: {error}; give the PEM files of a certificate and its key"
        ) from None
    return context


def _listen(config: ServiceConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"gateway cannot listen on {config.host} port {config.port}: {error}; choose another port"
        ) from None
    listener.set_inheritable(False)
    return listener


def _stop_when(stop: threading.Event, server: uvicorn.Server) -> None:
    stop.wait()
    server.should_exit = True
