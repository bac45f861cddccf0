"""Common parts of clients of HTTP services: sessions, harmless repetition, and failures without URLs or secrets."""

from __future__ import annotations

import ipaddress
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

T = TypeVar("T")

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A request without a reply. ``sent``: it may have reached the server; ``tls``: the two did not agree on TLS."""

    sent: bool
    why: str
    tls: bool = False


def pooled_session(connections: int) -> requests.Session:
    """A session that keeps ``connections`` open, and repeats nothing and follows no redirection by itself."""
    session = _Session()
    session.trust_env = False  # a proxy would see tokens, and a .netrc entry would replace the credential
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=connections, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def is_loopback(host: str) -> bool:
    """Tell whether what is sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def may_carry_token(url: str) -> bool:
    """Tell whether a token that is sent to this URL can be read by no other machine."""
    parts = urlsplit(url)
    return parts.scheme.lower() == "https" or is_loopback(parts.hostname or "")


def repeated(
    once: Callable[[], T | CallFailure], *, repeatable: bool, retries: int, pause: Callable[[float], object]
) -> T | CallFailure:
    """Return what ``once`` returns, called again after a failure that was not sent, or if the call is ``repeatable``.

    The failure in the end counts as sent if one of its attempts does.
    """
    attempt, lost = 0, False
    while True:
        outcome = once()
        if not isinstance(outcome, CallFailure):
            return outcome
        lost = lost or outcome.sent
        if (outcome.sent and not repeatable) or attempt >= retries:
            return replace(outcome, sent=lost)
        pause(random.uniform(0, min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)))  # noqa: S311 - jitter
        attempt += 1


def failure_of(error: requests.RequestException | HTTPError) -> CallFailure:
    """The failure without the library's message, which has the URL."""
    if isinstance(error, requests.ReadTimeout | ReadTimeoutError):
        return CallFailure(True, "no reply in time")
    cause = error if isinstance(error, HTTPError) else error.args[0] if error.args else None
    reason = getattr(cause, "reason", cause)
    if isinstance(error, requests.exceptions.SSLError | SSLError):
        # the other errors of TLS can also end a connection on which a request was sent
        distrusted = any(isinstance(part, ssl.SSLCertVerificationError) for part in getattr(reason, "args", ()))
        return CallFailure(not distrusted, "TLS failed", tls=True)
    if isinstance(reason, NewConnectionError | NameResolutionError):
        return CallFailure(False, "cannot connect")
    if isinstance(reason, ConnectTimeoutError) or isinstance(error, requests.ConnectTimeout):
        return CallFailure(False, "no connection in time")
    return CallFailure(True, f"the connection ended before the reply ({type(error).__name__})")


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: otherwise the library parses every `Location`, also with `allow_redirects=False`, and may raise."""
