"""The service: one process on loopback, until SIGTERM; the routes of FTS3 that clients use, and `/simulated`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sqlite3
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from include.http_bounds import BoundedHttp, ConnectionLimits
from include.http_calls import is_loopback
from lab.fts.callers import Callers, UnknownToken, subject_of
from lab.fts.config import FtsServiceConfig
from lab.fts.copies.copier import Copier
from lab.fts.copies.real import real_copiers
from lab.fts.errors import FtsRequestRefused, FtsServiceError
from lab.fts.http.calls import JSON, NOT_FOUND, Faults, FtsHandler, FtsRequest, for_users, page, refusal
from lab.fts.http.handlers import IdentityCalls, JobCalls, LinkCalls, SimulatedCalls
from lab.fts.records import StateFile
from lab.fts.transfers import EVERY_VO, USER, Transfers

log = logging.getLogger(__name__)

MOST_BODY = 64 << 20
MOST_REQUEST_LINE = 4094
BODY_S = 60.0
"""Seconds until a body has to be complete."""
SUBJECT = "nightshift.certificate"
"""The key of a connection's scope that has the subject of the caller's certificate."""
_OPEN = frozenset({"/", "/whoami"})
Clock = Callable[[], float]


def create_fts_app(
    config: FtsServiceConfig, *, copiers: dict[str, Copier] | None = None, clock: Clock = time.time
) -> Starlette:
    """The ASGI application; it opens the state, and closes it at its end. Raises FtsServiceError."""
    callers = Callers.of(config)
    transfers = Transfers(config, StateFile(config.state), copiers or {}, clock())
    faults = Faults(transfers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ticking = asyncio.create_task(_tick(transfers, config.tick_s, clock))
        yield
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        transfers.close()

    def endpoint(handler: FtsHandler) -> Callable[[Request], Awaitable[Response]]:
        async def call(http: Request) -> Response:
            if len(http.scope.get("raw_path", b"")) + len(http.scope["query_string"]) + 16 > MOST_REQUEST_LINE:
                return page(414, "The requested URL's length exceeds the capacity limit for this server.")
            try:
                _refuse_foreign(http, by_name=callers.open_to_all)
            except FtsRequestRefused as error:
                return refusal(error)
            body = await _body(http)
            try:
                caller = callers.caller(http.headers.get("authorization"), http.scope.get(SUBJECT))
                if (USER, caller.user, EVERY_VO) in transfers.bans:
                    return page(403, "The user has been banned")
                faults.before(http, body)
                response = handler(FtsRequest(http, caller, body, clock()))
            except UnknownToken as error:
                return page(error.status, error.message)
            except FtsRequestRefused as error:
                response = refusal(error)
            transfers.flush()
            return await faults.applied(http, response)

        return call

    routes = [
        Route(path, endpoint(handler if path in _OPEN else for_users(handler, path)), methods=[method])
        for method, path, handler in fts_routes(transfers, faults if config.with_faults else None)
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.add_middleware(MergedSlashes)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(sqlite3.Error, _state_unwritable)
    app.state.transfers = transfers
    return app


def fts_routes(transfers: Transfers, faults: Faults | None) -> list[tuple[str, str, FtsHandler]]:
    """Every call: method, path, handler."""
    jobs, who = JobCalls(transfers), IdentityCalls(transfers)
    links, simulated = LinkCalls(transfers), SimulatedCalls(transfers)
    delegation, job = "/delegation/{delegation_id}", "/jobs/{job_ids}"
    routes: dict[str, dict[str, FtsHandler]] = {
        "/": {"GET": who.root},
        "/whoami": {"GET": who.whoami},
        delegation: {"GET": who.delegated, "DELETE": who.undelegate},
        f"{delegation}/request": {"GET": who.request_proxy},
        f"{delegation}/credential": {"PUT": who.delegate, "POST": who.delegate},
        f"{delegation}/voms": {"POST": who.voms},
        "/jobs": {"GET": jobs.list, "POST": jobs.submit, "PUT": jobs.submit},
        "/jobs/all": {"DELETE": jobs.cancel_all},
        job: {"GET": jobs.status, "POST": jobs.modify, "DELETE": jobs.cancel},
        f"{job}/files/{{file_ids}}/retries": {"GET": jobs.retries},
        f"{job}/files/{{file_ids}}": {"DELETE": jobs.cancel_files},
        f"{job}/{{field}}": {"GET": jobs.field},
        "/jobs/vo/{vo}": {"DELETE": jobs.cancel_all},
        "/files": {"GET": jobs.files},
        "/archive": {"GET": jobs.archive},
        "/archive/{job_id}": {"GET": jobs.archived},
        "/ban/{kind}": {"GET": links.bans, "POST": links.ban, "DELETE": links.unban},
        "/optimizer": {"GET": links.optimizer},
        "/optimizer/current": {"GET": links.decisions},
        "/simulated/stat": {"POST": simulated.stat},
        "/simulated/remove": {"POST": simulated.remove},
        "/simulated/create": {"POST": simulated.create},
        "/simulated/list": {"GET": simulated.list},
        "/simulated/model": {"POST": simulated.model},
        **({"/simulated/faults": {"POST": faults.set}} if faults else {}),
    }
    return [(method, path, handler) for path, methods in routes.items() for method, handler in methods.items()]


class MergedSlashes:
    """`//whoami` is `/whoami`: the client of FTS3 asks so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith("//"):
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        await self._app(scope, receive, send)


async def _tick(transfers: Transfers, pause_s: float, clock: Clock) -> None:
    while True:
        try:
            transfers.tick(clock())
            transfers.flush()
        except Exception:
            # one step that fails must not be the last one
            log.exception("a step of the scheduler failed")
        await asyncio.sleep(pause_s)


def _refuse_foreign(http: Request, *, by_name: bool) -> None:
    """Refuse what a page of another site makes a browser send: a program sends no Origin.

    The types of content that a browser sends without asking the server first are no JSON. ``by_name``: the service
    needs a name that such a page cannot have either; it may have given its own name our address. Raises
    FtsRequestRefused: 403 for the page, 400 for the type.
    """
    host, origin = http.headers.get("host"), http.headers.get("origin")
    if by_name and host is not None and not _is_own(host):
        raise FtsRequestRefused(403, f"Host {host[:200]!r} is not this service; call it as 127.0.0.1 or localhost")
    if origin is not None and origin != f"{http.scope['scheme']}://{host}":
        raise FtsRequestRefused(403, f"Pages of {origin[:200]!r} may not call this service; call it by a program")
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if http.method == "POST" and kind != JSON and not http.scope["path"].endswith("/credential"):
        raise FtsRequestRefused(400, f"The content type is {kind[:200]!r}; send JSON as {JSON}")


def _is_own(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name == socket.gethostname().lower()


async def _body(http: Request) -> bytes:
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in http.stream():
                size += len(piece)
                if size > MOST_BODY:
                    raise HTTPException(413)
                pieces.append(piece)
    except ClientDisconnect:
        raise HTTPException(400) from None
    except TimeoutError:
        raise HTTPException(408) from None
    return b"".join(pieces)


async def _no_route(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    texts = {404: NOT_FOUND, 405: "The method is not allowed for the requested URL."}
    return refusal(FtsRequestRefused(status, texts.get(status, "The request cannot be handled.")))


async def _state_unwritable(_: Request, error: Exception) -> Response:
    log.error("the state file cannot be written: %s", error)
    return refusal(FtsRequestRefused(503, "The state cannot be written; try again later"))


class CertifiedHttp(BoundedHttp):
    """A connection that knows the certificate of its client."""

    _subject: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        self._subject = subject_of(certificate) if certificate else None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[SUBJECT] = self._subject


def serve_fts(config: FtsServiceConfig, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL once connections are accepted.

    Raises FtsServiceError: the settings, the port or the state file cannot be used.
    """
    if not is_loopback(config.host):
        raise FtsServiceError(f"the FTS service listens on loopback only, not on {config.host}; use 127.0.0.1")
    context = _tls(config)
    app = create_fts_app(config, copiers=real_copiers(config))
    closed = partial(log.debug, "a connection was closed at the limit: %s")
    bounds = ConnectionLimits(config.head_s, config.connections, closed)
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    url = f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="on", workers=1, ws="none",
            http=partial(CertifiedHttp, bounds=bounds),  # type: ignore[arg-type]
            timeout_keep_alive=75, timeout_graceful_shutdown=5,
            ssl_context_factory=(lambda *_: context) if context else None,
        )
    )  # fmt: skip
    log.info("FTS service listening on %s", url)
    if ready is not None:
        ready(url)
    server.run(sockets=[listener])


def _tls(config: FtsServiceConfig) -> ssl.SSLContext | None:
    if config.certificate is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(config.certificate, config.key)
        if config.authorities is not None:
            context.load_verify_locations(config.authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_ALLOW_PROXY_CERTS
    except (OSError, ssl.SSLError) as error:
        raise FtsServiceError(f"TLS cannot be configured with {config.certificate}: {error}") from None
    return context


def _listen(config: FtsServiceConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        text = f"the FTS service cannot listen on {config.host} port {config.port}: {error}; choose another port"
        raise FtsServiceError(text) from None
    listener.set_inheritable(False)
    return listener
