"""Around every request: a trace id in log and reply, one log line, and a plain 500 if something unforeseen happened."""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from include.gateway.protocol import TRACE_HEADER
from include.gateway.service.config import Limiter, RateLimits
from include.gateway.service.log import TRACE
from include.gateway.service.metrics import Metrics
from include.gateway.service.requests import Malformed, plain

_EVENT = "nightshift.event"

log = logging.getLogger(__name__)


def note(request: Request, event: str, **fields: Any) -> None:
    """Set what the request's log line contains. Without a note a request is logged only if it ends in an HTTP error."""
    request.scope[_EVENT] = (event, fields)


class Tracing:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, limiter: Limiter, limits: RateLimits) -> None:
        self._app = app
        self._metrics = metrics
        self._limiter = limiter
        self._header_bytes = limits.header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = secrets.token_hex(8)
        TRACE.set(trace)
        began = time.perf_counter()
        status = 0

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (TRACE_HEADER.lower().encode(), trace.encode())]
            await send(message)

        try:
            self._require_within_limits(scope)
            await self._app(scope, receive, send_traced)
        except Malformed as malformed:
            reply = plain(malformed.status, malformed.text, headers=malformed.headers)
            await reply(scope, receive, send_traced)
        except ClientDisconnect:
            log.info("caller hung up", extra={"fields": {"method": scope["method"]}})
        except Exception:
            log.exception("request failed", extra={"fields": {"method": scope["method"]}})
            if not status:
                reply = plain(500, f"internal error: see the gateway's log, trace {trace}")
                await reply(scope, receive, send_traced)
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(scope["method"] if route != "none" else "any", route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(time.perf_counter() - began)
        event, fields = scope.get(_EVENT, ("request refused", {}))
        if _EVENT in scope or status >= 400:
            level = logging.WARNING if status >= 500 else logging.INFO
            took = round(time.perf_counter() - began, 6)
            log.log(
                level, event, extra={"fields": {"method": scope["method"], "status": status, "seconds": took, **fields}}
            )

    def _require_within_limits(self, scope: Scope) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._header_bytes:
            raise Malformed(431, f"request header fields too large: at most {self._header_bytes} bytes")
        client = scope.get("client")
        self._limiter.request(client[0] if client else "unknown")
