"""The calls about repositories, and those of the administrator: enable, end leases, read the configuration again."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from include.cvmfs.commit.commit import MANIFEST_KEY
from include.cvmfs.errors import CvmfsError
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import OFFERS_HEADER, LeasePath
from include.gateway.service import requests
from include.gateway.service.config import ConfigError, RepositoryConfig
from include.gateway.service.http.openapi import document
from include.gateway.service.http.payloads import is_utf8, read_body
from include.gateway.service.http.serving import OFFERS, Serving
from include.gateway.service.http.tracing import note
from include.gateway.service.metrics import CONTENT_TYPE
from include.gateway.service.requests import Malformed, Refused, parse_collection, parse_enable
from include.gateway.service.store_checks import Looks
from include.storage.errors import StoreError

log = logging.getLogger(__name__)

_REMEMBERED_S = 2.0  # a store is not asked more often, however many ask us


class StatusCalls:
    """None of them needs a signature, and none reveals a secret."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._looked: tuple[float, dict[str, str]] = (float("-inf"), {})
        self._looking = asyncio.Lock()
        self._looks: Looks[str] = Looks()

    async def health(self, _: Request) -> Response:
        """The process answers, and its state can be read."""
        return requests.ok(service="nightshift-gateway", pid=os.getpid(), leases=self._serving.table.held())

    async def ready(self, _: Request) -> Response:
        """Every repository's store is reachable and its signing key loads; HTTP 503 otherwise, with the reasons."""
        async with self._looking:
            at, found = self._looked
            if time.monotonic() - at > _REMEMBERED_S:
                names = dict(self._serving.config.repositories)
                looks = [self._look(*item) for item in names.items()]
                found = dict(zip(names, await asyncio.gather(*looks), strict=True))
                self._looked = time.monotonic(), found
        good = all(reason == "ok" for reason in found.values())
        members = {"status": "ok" if good else "error", "repositories": found}
        return JSONResponse(members, 200 if good else 503)

    async def metrics(self, _: Request) -> Response:
        """The figures, for Prometheus."""
        page = await asyncio.to_thread(self._serving.metrics.page)
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        """This description."""
        return JSONResponse(document())

    async def _look(self, name: str, repository: RepositoryConfig) -> str:
        try:
            return await self._looks.look(name, lambda: _reachable(repository))
        except TimeoutError:
            return "the store does not answer in time"


def _reachable(repository: RepositoryConfig) -> str:
    try:
        repository.signer()
        there = repository.quick().exists(MANIFEST_KEY)
    except (CvmfsError, StoreError, ConfigError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        log.exception("not ready")
        return f"{type(error).__name__}: see the gateway's log"
    return "ok" if there else f"no {MANIFEST_KEY} in the store"


WELCOME = "You are in an open field on the west side of a white house with a boarded front door."
NO_COLLECTOR = (
    "garbage collection is not done by this gateway: publications go on while the collector runs; "
    "start it where its credentials are"
)


class AdminCalls:
    """Those without a signature only look."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._table = serving.table

    async def welcome(self, _: Request) -> Response:
        """A greeting; a header lists what the service offers."""
        return requests.answer({"welcome": WELCOME}, headers={OFFERS_HEADER: OFFERS})

    async def repositories(self, _: Request) -> Response:
        """The repositories, with the keys that may lease their paths."""
        disabled = self._table.disabled()
        names = sorted(self._serving.config.repositories)
        return requests.ok(data={name: self._repository(name, disabled) for name in names})

    async def repository(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        if name not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        return requests.ok(data=self._repository(name, self._table.disabled()))

    async def enable(self, request: Request) -> Response:
        """Let a repository give out new leases, or not."""
        name, body = request.path_params["name"], await read_body(request)
        key_id = self._serving.admin(request, body, name)
        enabled = parse_enable(body)
        if name not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        await asyncio.wrap_future(self._table.enable(name, enabled))
        note(request, "repository enabled" if enabled else "repository disabled", repository=name, key=key_id)
        return requests.ok()

    async def drop_by_path(self, request: Request) -> Response:
        """End all leases at and below a path."""
        repository = request.path_params["path"].partition("/")[0]
        message = request.scope["path"].encode("utf-8", "replace")
        key_id = self._serving.admin(request, message, repository)
        if not request.path_params["path"]:
            raise Malformed(400, "missing path argument")
        if not is_utf8(request.scope.get("raw_path") or b""):
            raise Refused("invalid lease path: not UTF-8")
        try:
            place = LeasePath.parse(request.path_params["path"])
        except BadLeasePath as error:
            raise Refused(str(error)) from None
        if place.repository not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        rows = await asyncio.wrap_future(self._table.drop_below(place.repository, place.path))
        self._serving.metrics.lease_events.labels("cancelled").inc(len(rows))
        note(request, "leases dropped by path", path=str(place), key=key_id, leases=[row.full_path for row in rows])
        return requests.ok()

    async def collect(self, request: Request) -> Response:
        """Refused: collections are the collector's."""
        body = await read_body(request)
        repository = parse_collection(body)
        key_id = self._serving.admin(request, body, repository)
        if repository not in self._serving.config.repositories:
            raise Refused("invalid_repo")
        note(request, "collection refused", repository=repository, key=key_id)
        return requests.error(NO_COLLECTOR)

    async def reload(self, request: Request) -> Response:
        """Read keys and repositories again."""
        key_id = self._serving.admin(request, await read_body(request))
        try:
            names = await asyncio.to_thread(self._serving.reload)
        except ConfigError as error:
            note(request, "configuration refused", key=key_id, detail=str(error))
            return requests.error("configuration refused, the old one stays", str(error))
        note(request, "configuration read again", key=key_id, repositories=names)
        return requests.ok(repositories=names)

    def _repository(self, name: str, disabled: set[str]) -> dict[str, Any]:
        keys = sorted(self._serving.config.repositories[name].keys, key=lambda key: key.id)
        return {"keys": {key.id: key.path for key in keys}, "enabled": name not in disabled}
