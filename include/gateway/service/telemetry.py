"""The log, the figures and the traces of the service.

The log has one JSON object per line, with the trace that the caller also got; no token ever reaches it. The figures are
for Prometheus; every service has a registry of its own. Around every request: a trace id in log and reply, one log
line, and a plain 500 if something unforeseen happened.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from include.gateway.errors import redact
from include.gateway.protocol import TRACE_HEADER
from include.gateway.service.config import Limiter, RateLimits
from include.gateway.service.requests import Malformed, plain

TRACE: ContextVar[str] = ContextVar("gateway_trace", default="")


class JsonLines(logging.Formatter):
    """Time, level, event, trace, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if trace := TRACE.get():
            line["trace"] = trace
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, default=str))


def log_to(stream: TextIO = sys.stderr, *, level: int = logging.INFO) -> None:
    """Send this service's and its server's log lines to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in ("include", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures. Names end in their unit; labels have few values: a route's pattern, never a path of a caller's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        within: dict[str, Any] = {"namespace": "nightshift_gateway", "registry": self.registry}
        self.requests = Counter("http_requests", "Requests answered", ("method", "route", "status"), **within)
        self.request_seconds = Histogram(
            "http_request_seconds", "From the request's head to its answer", ("route",), buckets=_SECONDS, **within
        )
        self.leases = Gauge("leases", "Leases that are held", **within)
        self.lease_events = Counter("lease_events", "What happened to leases", ("event",), **within)
        self.commits = Counter("commits", "Commits by outcome", ("repository", "outcome"), **within)
        self.commit_seconds = Histogram(
            "commit_seconds", "From the commit's arrival to its outcome", ("repository",), buckets=_SECONDS, **within
        )
        self.group_size = Histogram(
            "group_size", "Commits that went together", ("repository",), buckets=_SIZES, **within
        )
        self.group_seconds = Histogram(
            "group_seconds", "Making one revision", ("repository",), buckets=_SECONDS, **within
        )
        self.payloads = Counter("payloads", "Payloads by outcome", ("repository", "outcome"), **within)
        self.payload_objects = Counter("payload_objects", "Objects of payloads", ("repository", "found"), **within)
        self.payload_bytes = Counter("payload_bytes", "Bytes of payloads that were stored", ("repository",), **within)
        self.queue = Gauge("commits_waiting", "Commits that wait for their turn", ("repository",), **within)
        self.waiting = Gauge("paths_waited_for", "Publishers that wait for a busy path", **within)
        self.limited = Counter("requests_limited", "Requests refused by a limit", ("limit",), **within)
        self.clock_steps = Counter("clock_steps", "Steps of the wall clock over 5 s that were noticed", **within)

    def page(self) -> bytes:
        """All of them in the text format."""
        return generate_latest(self.registry)


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
        trace = f"{random.getrandbits(64):016x}"
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
