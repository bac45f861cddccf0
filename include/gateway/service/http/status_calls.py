"""For those who watch the service: whether it lives, whether it can publish, what it counts, what its calls are."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from include.cvmfs.commit.commit import MANIFEST_KEY
from include.cvmfs.errors import CvmfsError
from include.gateway.service import replies
from include.gateway.service.config import ConfigError, RepositoryConfig
from include.gateway.service.http.openapi import document
from include.gateway.service.http.serving import Serving
from include.gateway.service.metrics import CONTENT_TYPE
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
        return replies.ok(service="nightshift-gateway", pid=os.getpid(), leases=self._serving.table.held())

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
