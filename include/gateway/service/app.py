"""The gateway's routes (docs/formats.md, gateway): leases, commits, administration, as the stock gateway answers them.

Beyond the stock gateway: conflicts by path component, a lease belongs to the key that took it, renewal, repeatable
commits, malformed paths refused, payloads verified.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from include.gateway.duration import format_duration, format_time
from include.gateway.errors import BadLeasePath
from include.gateway.paths import LeasePath
from include.gateway.service import replies
from include.gateway.service.access import Access
from include.gateway.service.clock import Clock, SystemClock
from include.gateway.service.commits import CommitQueue, Committer
from include.gateway.service.config import ServiceConfig
from include.gateway.service.lease_rows import LeaseRow
from include.gateway.service.lease_table import Busy, LeaseTable, digest_of
from include.gateway.service.payloads import Payloads
from include.gateway.service.points import OnPoint, from_environment
from include.gateway.service.replies import INVALID_LEASE, Malformed, Refused
from include.gateway.service.requests import (
    BODY_BYTES,
    CommitRequest,
    LeaseRequest,
    checked_token,
    parse_enable,
    parse_renewal,
)
from include.gateway.service.routing import allowed_methods, redirect_target
from include.gateway.service.tracing import Tracing, note
from include.gateway.service.writer import StateError

API = "/api/v1"
WELCOME = "You are in an open field on the west side of a white house with a boarded front door."
EXPIRES_HEADER = "X-Nightshift-Expires-In"

_BODY_TIMEOUT_S = 30.0

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    config: ServiceConfig,
    *,
    committer: Committer | None = None,
    clock: Clock | None = None,
    table: LeaseTable | None = None,
    on_point: OnPoint | None = None,
) -> FastAPI:
    """The ASGI application. Without a ``table`` it opens (and at its end closes) the state of the configuration.

    Raises ConfigError if another gateway holds that state.
    """
    own_table = table is None
    if table is None:
        table = LeaseTable(config.state, clock=clock or SystemClock(), max_lease_time_s=config.max_lease_time_s)
    if committer is None:
        from include.gateway.service.committer import StoreCommitter

        committer = StoreCommitter(config, table)
    commits = CommitQueue(table, committer, config.repositories.__contains__, on_point=on_point or from_environment())
    gateway = Gateway(config, table, commits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await commits.close()
        gateway.close()
        if own_table:
            table.close()

    app = FastAPI(
        title="Nightshift gateway",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for method, path, handler in gateway.routes():
        app.add_api_route(path, handler, methods=[method], response_model=None)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(Malformed, _malformed)
    app.add_exception_handler(StateError, _state_trouble)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(Tracing)
    return app


class Gateway:
    """The calls. Each reads its request, asks ``Access``, changes the ``LeaseTable``, and answers."""

    def __init__(self, config: ServiceConfig, table: LeaseTable, commits: CommitQueue) -> None:
        self._config = config
        self._access = Access(config)
        self._table = table
        self._commits = commits
        self._payloads = Payloads(config, lambda: self._access, table)

    def close(self) -> None:
        self._payloads.close()

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/health", self.health),
            ("GET", API, self.welcome),
            ("GET", f"{API}/repos", self.repositories),
            ("GET", f"{API}/repos/{{name}}", self.repository),
            ("POST", f"{API}/repos/{{name}}", self.enable),
            ("GET", f"{API}/leases", self.leases),
            ("POST", f"{API}/leases", self.acquire),
            ("GET", f"{API}/leases/{{token}}", self.lease),
            ("POST", f"{API}/leases/{{token}}", self.commit),
            ("PATCH", f"{API}/leases/{{token}}", self.renew),
            ("DELETE", f"{API}/leases/{{token}}", self.drop),
            ("DELETE", f"{API}/leases-by-path/{{path:path}}", self.drop_by_path),
            ("POST", f"{API}/payloads", self._payloads.legacy),
            ("POST", f"{API}/payloads/{{token}}", self._payloads.by_token),
        ]

    async def health(self, _: Request) -> Response:
        return replies.ok(service="nightshift-gateway", pid=os.getpid(), leases=len(self._table.listed()))

    async def welcome(self, _: Request) -> Response:
        return replies.answer({"welcome": WELCOME})

    async def repositories(self, _: Request) -> Response:
        disabled = self._table.disabled()
        return replies.ok(data={name: self._repository(name, disabled) for name in sorted(self._config.repositories)})

    async def repository(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._config.repositories:
            raise Refused("invalid_repo")
        return replies.ok(data=self._repository(name, self._table.disabled()))

    async def enable(self, request: Request) -> Response:
        name, body = request.path_params["name"], await _body(request)
        key_id = self._access.authenticate_admin(_authorization(request), body, name)
        enabled = parse_enable(body)
        if name not in self._config.repositories:
            raise Refused("invalid_repo")
        await asyncio.wrap_future(self._table.enable(name, enabled))
        note(request, "repository enabled" if enabled else "repository disabled", repository=name, key=key_id)
        return replies.ok()

    async def leases(self, _: Request) -> Response:
        return replies.ok(data={row.full_path: _listed(row) for row in self._table.listed()})

    async def acquire(self, request: Request) -> Response:
        body = await _body(request)
        key_id = self._access.authenticate(_authorization(request), body)
        wanted = LeaseRequest.parse(body, remote=_remote(request))
        if wanted.path.repository not in self._config.repositories:
            raise Refused("repository not found: %!w(<nil>)")  # the artefact is the stock gateway's, which clients know
        self._access.check_lease(key_id, wanted.path)
        outcome = await asyncio.wrap_future(
            self._table.acquire(wanted.path, key_id=key_id, hostname=wanted.hostname, version=wanted.version)
        )
        place = {"path": str(wanted.path), "key": key_id, "hostname": wanted.hostname}
        if isinstance(outcome, Busy):
            note(request, "lease refused: path busy", **place, remaining_s=outcome.remaining_ns / 1e9)
            return replies.answer({"status": "path_busy", "time_remaining": format_duration(outcome.remaining_ns)})
        note(request, "lease granted", **place, epoch=outcome.row.epoch)
        return replies.answer(
            {"status": "ok", "session_token": outcome.token, "max_api_version": wanted.version},
            headers={EXPIRES_HEADER: f"{self._config.max_lease_time_s:.3f}"},
        )

    async def lease(self, request: Request) -> Response:
        row = self._table.valid(digest_of(_token_or_500(request.path_params["token"])))
        if row is None:
            raise Malformed(500, INVALID_LEASE)
        return replies.answer({"data": _listed(row)})

    async def commit(self, request: Request) -> Response:
        key_id, token = self._signed_token(request)
        order = CommitRequest.parse(await _body(request))
        revision = await self._commits.commit(digest_of(checked_token(token)), order, self._owner_or_admin(key_id))
        note(request, "committed", key=key_id, revision=revision, new_root=order.new_root)
        return replies.ok(final_revision=revision)

    async def renew(self, request: Request) -> Response:
        key_id, token = self._signed_token(request)
        wanted_s = parse_renewal(await _body(request))
        row = await asyncio.wrap_future(
            self._table.renew(digest_of(checked_token(token)), self._may_use(key_id), wanted_s)
        )
        note(
            request,
            "lease renewed",
            path=row.full_path,
            key=key_id,
            epoch=row.epoch,
            expires=format_time(row.expires_ms),
        )
        left_s = wanted_s if wanted_s is not None else self._config.max_lease_time_s
        return replies.answer(
            {"status": "ok", "data": {"expires": format_time(row.expires_ms)}},
            headers={EXPIRES_HEADER: f"{min(left_s, self._config.max_lease_time_s):.3f}"},
        )

    async def drop(self, request: Request) -> Response:
        key_id, token = self._signed_token(request)
        row = await asyncio.wrap_future(self._table.drop(digest_of(checked_token(token)), self._may_use(key_id)))
        note(request, "lease dropped", path=row.full_path, key=key_id, epoch=row.epoch)
        return replies.ok()

    async def drop_by_path(self, request: Request) -> Response:
        repository = request.path_params["path"].partition("/")[0]
        message = request.scope["path"].encode("utf-8", "replace")
        key_id = self._access.authenticate_admin(_authorization(request), message, repository)
        if not request.path_params["path"]:
            raise Malformed(400, "missing path argument")
        if not _is_utf8(request.scope.get("raw_path") or b""):
            raise Refused("invalid lease path: not UTF-8")
        try:
            place = LeasePath.parse(request.path_params["path"])
        except BadLeasePath as error:
            raise Refused(str(error)) from None
        if place.repository not in self._config.repositories:
            raise Refused("invalid_repo")
        rows = await asyncio.wrap_future(self._table.drop_below(place.repository, place.path))
        note(request, "leases dropped by path", path=str(place), key=key_id, leases=[row.full_path for row in rows])
        return replies.ok()

    def _signed_token(self, request: Request) -> tuple[str, str]:
        token: str = request.path_params["token"]
        return self._access.authenticate(_authorization(request), token.encode("utf-8", "replace")), token

    def _owner_or_admin(self, key_id: str) -> Callable[[str, str], bool]:
        return lambda owner, repository: key_id == owner or self._access.is_admin(key_id, repository)

    def _may_use(self, key_id: str) -> Callable[[LeaseRow], bool]:
        may = self._owner_or_admin(key_id)
        return lambda row: may(row.key_id, row.repository)

    def _repository(self, name: str, disabled: set[str]) -> dict[str, Any]:
        keys = sorted(self._config.repositories[name].keys, key=lambda key: key.id)
        return {"keys": {key.id: key.path for key in keys}, "enabled": name not in disabled}


def _token_or_500(text: str) -> str:
    """As the stock gateway answers a GET of a token that it does not know."""
    try:
        return checked_token(text)
    except Refused as refused:
        raise Malformed(500, refused.reason) from None


def _listed(row: LeaseRow) -> dict[str, str]:
    return {
        "key_id": row.key_id,
        "path": row.full_path,
        "expires": format_time(row.expires_ms),
        "hostname": row.hostname,
    }


def _authorization(request: Request) -> str | None:
    return request.headers.get("authorization")


def _is_utf8(raw_path: bytes) -> bool:
    """Whether a path means what it says; the server replaces what is not UTF-8."""
    try:
        unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _remote(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else "unknown"


async def _body(request: Request) -> bytes:
    """The whole body. Raises Malformed above the limit, or when it does not arrive in time."""
    found = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for block in request.stream():
                found += block
                if len(found) > BODY_BYTES:
                    raise Malformed(413, f"request body too large: at most {BODY_BYTES} bytes")
    except TimeoutError:
        raise Malformed(408, "request body did not arrive in time") from None
    return bytes(found)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - registered for this class
    note(request, "refused", reason=error.reason, **({"detail": error.detail} if error.detail else {}))
    return replies.error(error.reason, error.detail)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, Malformed)  # noqa: S101 - registered for this class
    return replies.plain(error.status, error.text)


async def _state_trouble(request: Request, error: Exception) -> Response:
    note(request, "state trouble", detail=str(error))
    return replies.error(f"could not begin transaction: {error}")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
    methods = allowed_methods(request.app.routes, request.scope)
    if error.status_code == 405 or methods:
        allow = {"Allow": ", ".join(methods)}
        if request.method == "OPTIONS":
            return Response(status_code=200, headers=allow)
        return replies.plain(405, "Method Not Allowed", headers=allow)
    target = redirect_target(request.app.routes, request.scope)
    if target is not None:
        return replies.moved(301 if request.method == "GET" else 308, target)
    if error.status_code == 404:
        return replies.plain(404, "404 page not found")
    return replies.plain(error.status_code, "invalid request")
