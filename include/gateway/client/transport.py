"""HTTP as the gateway speaks it: signed calls, time-outs, harmless repetition, and errors that show no token."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import requests

from include.gateway.errors import GatewayUnreachable, ReplyLost, redact
from include.gateway.protocol import API, TRACE_HEADER
from include.http_calls import CallFailure, failure_of, pooled_session, repeated

_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Call:
    """A request. ``signed`` is the message that the signature covers, ``None`` for calls without one.

    ``repeatable``: it may be sent again although an earlier one may have arrived.
    """

    method: str
    path: str = field(repr=False)
    what: str
    signed: bytes | None = field(default=None, repr=False)
    body: bytes | None = field(default=None, repr=False)
    repeatable: bool = False
    timeout_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """``members``: the JSON object of the body, ``None`` if it is not one; ``text``: its beginning, without tokens."""

    status: int
    headers: Mapping[str, str]
    text: str
    members: Mapping[str, Any] | None = field(repr=False)

    @property
    def trace(self) -> str | None:
        return self.headers.get(TRACE_HEADER)


class Authorize(Protocol):
    def __call__(self, message: bytes) -> str: ...


class Transport:
    """A session to one gateway. ``pause`` waits before a repetition and can be replaced."""

    def __init__(
        self,
        base_url: str,
        authorize: Authorize,
        *,
        timeout_s: float,
        retries: int,
        authorities: str | None = None,
        session: requests.Session | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.url = _api_url(base_url)
        self._authorize = authorize
        self._timeout_s = timeout_s
        self._retries = retries
        self._pause = pause or threading.Event().wait
        self._session = session or pooled_session(_CONNECTIONS)
        if authorities:
            self._session.verify = authorities
        _hide_tokens_of_urllib3()

    def close(self) -> None:
        self._session.close()

    def send(self, call: Call) -> Reply:
        """The reply, of any status. Raises GatewayUnreachable if nothing was sent, else ReplyLost."""
        outcome = repeated(
            lambda: self._once(call), repeatable=call.repeatable, retries=self._retries, pause=self._pause
        )
        if isinstance(outcome, Reply):
            return outcome
        # Raised here, outside of any except block, so that no traceback carries the library's message with its URL.
        kind = ReplyLost if outcome.sent else GatewayUnreachable
        raise kind(f"gateway {self.url}: {call.what}: {outcome.why}; {kind.hint}")

    def _once(self, call: Call) -> Reply | CallFailure:
        headers = {"Accept": "*/*", **call.headers}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.signed is not None:
            headers["Authorization"] = self._authorize(call.signed)
        timeout_s = call.timeout_s or self._timeout_s
        try:
            response = self._session.request(
                call.method, self.url + call.path, data=call.body, headers=headers,
                timeout=(min(timeout_s, 10.0), timeout_s), allow_redirects=False,
            )  # fmt: skip
            return Reply(
                response.status_code, response.headers, redact(response.text[:2000]), _members(response.content)
            )
        except requests.RequestException as error:
            return failure_of(error)


def _api_url(base_url: str) -> str:
    base = base_url.rstrip("/")
    return base if base.endswith(API) else base + API


def _members(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _HideTokens(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        hidden = redact(message)
        if hidden != message:
            record.msg, record.args = hidden, ()
        return True


_FILTER = _HideTokens()


def _hide_tokens_of_urllib3() -> None:
    """urllib3 logs every URL at DEBUG, and the protocol puts tokens into URLs."""
    for name in ("urllib3.connectionpool", "urllib3.util.retry"):
        logging.getLogger(name).addFilter(_FILTER)
