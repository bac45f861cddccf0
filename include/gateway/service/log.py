"""The service's log: one JSON object per line, with the trace that the caller also got. No token ever reaches it."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from include.gateway.errors import redact

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
