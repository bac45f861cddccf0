"""HTTP as the gateway speaks it: signed calls, time-outs, harmless repetition, and replies as errors of the tree.

And the calls with an administrator's key: end leases, open and close a repository, collect garbage.
"""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.exceptions import HTTPError

from include.gateway import errors, protocol
from include.gateway.client.leases import Lease, RepositoryInfo
from include.gateway.protocol import API, EPOCH_HEADER, EXPIRES_HEADER, TRACE_HEADER, LeasePath, checked_path
from include.http_calls import CallFailure, failure_of, repeated

T = TypeVar("T")


class ReplyVerdict:
    """Judges the replies of one gateway to calls with one key; errors name both."""

    def __init__(self, url: str, key_id: str) -> None:
        self._url = url
        self._key_id = key_id

    def require_ok(self, reply: Reply, what: str, about: Lease | LeasePath | None = None) -> None:
        """Raises the error that the reply means, unless its status is ok."""
        members, fields = reply.members, self.about(about)
        if reply.status == 200 and members is not None:
            if members.get("status") == "ok":
                return
            reason = members.get("reason", members.get("status"))
            if isinstance(reason, str) and reason:
                detail = members.get("detail")
                raise _error(
                    errors.kind_of(reason), what, reason, reply, fields, detail if isinstance(detail, str) else ""
                )
            self.unexpected(reply, what)
        text = reply.text.strip()
        if reply.status >= 500:
            raise _error(
                errors.LeaseLost if text == "invalid lease" else errors.GATEWAY_FAILED, what, text, reply, fields
            )
        if reply.status in (404, 405):
            raise _error(errors.NotOffered, what, f"HTTP {reply.status}", reply, fields)
        if 400 <= reply.status < 500:
            raise _error(errors.BAD_REQUEST, what, text or f"HTTP {reply.status}", reply, fields)
        self.unexpected(reply, what)

    def parsed(self, reply: Reply, what: str, parse: Callable[[Any], T]) -> T:
        """Return what ``parse`` makes of the reply's data. Raises GatewayError if it cannot."""
        data = (reply.members or {}).get("data")
        try:
            return parse({} if data is None else data)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.unexpected(reply, what)

    def unexpected(self, reply: Reply, what: str) -> NoReturn:
        """Raises GatewayError: this is no reply of a gateway."""
        raise errors.UNEXPECTED_REPLY(
            f"gateway {self._url}: {what}: HTTP {reply.status}, {reply.text[:200]!r}; {errors.UNEXPECTED_REPLY.hint}",
            trace=reply.trace,
        )

    def about(self, about: Lease | LeasePath | None) -> dict[str, str]:
        """The fields that errors carry."""
        fields = {"key_id": self._key_id}
        return fields if about is None else {**fields, "repository": about.repository, "path": about.path}


def _error(
    kind: errors.GatewayErrorKind, what: str, reason: str, reply: Reply, fields: Mapping[str, str], detail: str = ""
) -> errors.GatewayError:
    message = f"{reason}: {detail}" if detail else reason
    trace = f" (trace {reply.trace})" if reply.trace else ""
    return kind(f"{what}: {message[:1000]}; {kind.hint}{trace}", reason=reason, trace=reply.trace, **fields)


def deadline_of(reply: Reply, sent_at: float) -> float | None:
    """When a lease ends, monotonic: counted from before the request was sent, so never later than at the gateway."""
    try:
        return sent_at + float(reply.headers[EXPIRES_HEADER])
    except (KeyError, ValueError):
        return None


def queue_of(reply: Reply) -> str:
    """Our place among those who wait, in words; nothing if the gateway does not report it."""
    members = reply.members or {}
    position, waiting, expected = (members.get(name) for name in ("position", "waiting", "expected_wait"))
    if not isinstance(position, int) or not isinstance(waiting, int) or not isinstance(expected, str):
        return ""
    return f", place {position} of {waiting} who wait, expected in {expected[:20]}"


def epoch_of(reply: Reply) -> int | None:
    """The fence of a lease, if the gateway gives one."""
    text = reply.headers.get(EPOCH_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


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
    """Connections to one gateway; no proxy and no .netrc of the environment counts.

    ``authorities``: a file or folder of certificates; ``pause`` waits before a repetition and can be replaced.
    """

    def __init__(
        self,
        base_url: str,
        authorize: Authorize,
        *,
        timeout_s: float,
        retries: int,
        authorities: str | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        base = base_url.rstrip("/")
        self.url = base if base.endswith(API) else base + API
        self._authorize = authorize
        self._timeout_s = timeout_s
        self._retries = retries
        self._pause = pause or threading.Event().wait
        trusted = authorities or DEFAULT_CA_BUNDLE_PATH
        tls: dict[str, Any] = {"ca_cert_dir" if Path(trusted).is_dir() else "ca_certs": trusted}
        # urllib3 alone: what requests does around it doubles the processor time of a call
        self._pool = urllib3.PoolManager(1, maxsize=_CONNECTIONS, retries=False, cert_reqs="CERT_REQUIRED", **tls)
        _hide_tokens_of_urllib3()

    def close(self) -> None:
        self._pool.clear()

    def send(self, call: Call) -> Reply:
        """The reply, of any status. Raises GatewayUnreachable if nothing was sent, else ReplyLost."""
        outcome = repeated(
            lambda: self._once(call), repeatable=call.repeatable, retries=self._retries, pause=self._pause
        )
        if isinstance(outcome, Reply):
            return outcome
        # Raised here, outside of any except block, so that no traceback carries the library's message with its URL.
        kind = errors.ReplyLost if outcome.sent else errors.GatewayUnreachable
        raise kind(f"gateway {self.url}: {call.what}: {outcome.why}; {kind.hint}")

    def _once(self, call: Call) -> Reply | CallFailure:
        headers = {"Accept": "*/*", **call.headers}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.signed is not None:
            headers["Authorization"] = self._authorize(call.signed)
        timeout_s = call.timeout_s or self._timeout_s
        try:
            response = self._pool.request(
                call.method, self.url + call.path, body=call.body, headers=headers, redirect=False,
                timeout=urllib3.Timeout(connect=min(timeout_s, 10.0), read=timeout_s),
            )  # fmt: skip
        except HTTPError as error:
            return failure_of(error)
        text = response.data.decode(errors="replace")
        return Reply(response.status, response.headers, errors.redact(text[:2000]), _members(response.data))


def _members(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _HideTokens(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        hidden = errors.redact(message)
        if hidden != message:
            record.msg, record.args = hidden, ()
        return True


_FILTER = _HideTokens()


def _hide_tokens_of_urllib3() -> None:
    """urllib3 logs every URL at DEBUG, and the protocol puts tokens into URLs."""
    for name in ("urllib3.connectionpool", "urllib3.util.retry"):
        logging.getLogger(name).addFilter(_FILTER)


class Administration(ABC):
    """The part of a client that needs such a key; every call raises AdminKeyNeeded for another one."""

    _verdict: ReplyVerdict
    key_id: str

    @abstractmethod
    def _send(self, call: Call) -> Reply: ...

    @abstractmethod
    def repositories(self) -> list[RepositoryInfo]: ...

    def drop_by_path(self, repository: str, path: str) -> None:
        """End every lease at and below ``path``, no matter which key holds it."""
        place = LeasePath(repository, checked_path(path))
        url = f"{protocol.LEASES_BY_PATH}/{place}"
        what = f"end of all leases below {place} with key {self.key_id}"
        call = Call("DELETE", quote(url), what, signed=(protocol.API + url).encode(), repeatable=True)
        self._verdict.require_ok(self._send(call), what, place)

    def set_enabled(self, repository: str, *, enabled: bool) -> None:
        """Let a repository give out new leases, or not; those that are held stay as they are.

        A stock gateway replies ok also where it did not do it, so the repository is checked afterwards. It forgets it
        when it restarts: then every repository is enabled. Raises GatewayError.
        """
        what = f"{'enabling' if enabled else 'disabling'} {repository} with key {self.key_id}"
        body = protocol.format_enable(enabled)
        path = f"{protocol.REPOSITORIES}/{quote(repository)}"
        place = LeasePath(repository, "")
        self._verdict.require_ok(
            self._send(Call("POST", path, what, signed=body, body=body, repeatable=True)), what, place
        )
        if not any(listed.name == repository and listed.enabled is enabled for listed in self.repositories()):
            raise errors.NOT_SWITCHED(f"{what}: the gateway replied ok and did not do it; {errors.NOT_SWITCHED.hint}")

    def collect_garbage(
        self, repository: str, *, timeout_s: float, revisions: int = 0, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Let a stock gateway run ``cvmfs_server gc -f -l``, and wait for it; the lines of its output.

        ``revisions``: how many before the current one stay; 0: those of the last 3 days, and the one that was current
        then. (The call also has a time, which ``date`` of the gateway's machine refuses in the form that it is handed
        on.) The gateway keeps commits of the repository out meanwhile, and not leases.

        Raises CollectionFailed for a run that failed or was refused, whose output the gateway keeps; ReplyLost for one
        that may be going on; NotOffered, and other GatewayErrors for one that was not begun.
        """
        what = f"garbage collection of {repository} with key {self.key_id}"
        body = protocol.format_collection(repository, revisions=revisions, dry_run=dry_run)
        reply = self._send(Call("POST", protocol.COLLECTION, what, signed=body, body=body, timeout_s=timeout_s))
        self._verdict.require_ok(reply, what, LeasePath(repository, ""))
        output = (reply.members or {}).get("output")
        if not isinstance(output, str):
            self._verdict.unexpected(reply, what)
        return tuple(output.splitlines())
