"""HTTP as the gateway speaks it: signed calls, time-outs, harmless repetition, and errors that show no token."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from include.gateway.errors import GatewayUnreachable, ReplyLost, redact
from include.gateway.protocol import API, TRACE_HEADER

_CONNECTIONS = 16
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


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
    """``members``: the JSON object of the body, ``None`` if it is none; ``text``: its beginning, without tokens."""

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
        session: requests.Session | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.url = _api_url(base_url)
        self._authorize = authorize
        self._timeout_s = timeout_s
        self._retries = retries
        self._pause = pause or threading.Event().wait
        self._session = session or _session()
        _hide_tokens_of_urllib3()

    def close(self) -> None:
        self._session.close()

    def send(self, call: Call) -> Reply:
        """The reply, whatever it says. Raises GatewayUnreachable if nothing was sent, else ReplyLost."""
        attempt, lost = 0, False
        while True:
            outcome = self._once(call)
            if isinstance(outcome, Reply):
                return outcome
            sent, why = outcome
            lost = lost or sent
            if (sent and not call.repeatable) or attempt >= self._retries:
                break
            self._pause(random.uniform(0, min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)))  # noqa: S311 - jitter
            attempt += 1
        # Raised here, outside of any except block, so that no traceback carries the library's message with its URL.
        kind = ReplyLost if lost else GatewayUnreachable
        raise kind(f"gateway {self.url}: {call.what}: {why}; {kind.hint}")

    def _once(self, call: Call) -> Reply | tuple[bool, str]:
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
            return _was_sent(error), _in_words(error)


def _api_url(base_url: str) -> str:
    base = base_url.rstrip("/")
    return base if base.endswith(API) else base + API


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a proxy would see tokens, and a .netrc entry would replace the signature
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=_CONNECTIONS, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _members(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _was_sent(error: requests.RequestException) -> bool:
    """Whether the request may have reached the gateway: not, if there never was a connection."""
    if isinstance(error, requests.ConnectTimeout):
        return False
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", cause)
    return not isinstance(reason, NewConnectionError | NameResolutionError | ConnectTimeoutError)


def _in_words(error: requests.RequestException) -> str:
    if isinstance(error, requests.ReadTimeout):
        return "no reply in time"
    if isinstance(error, requests.ConnectTimeout):
        return "no connection in time"
    if not _was_sent(error):
        return "cannot connect"
    return f"the connection ended before the reply ({type(error).__name__})"


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
