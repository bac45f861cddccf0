"""HTTP as an FTS server speaks it: JSON, limits of time and size, no redirects, and errors that show no secret."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from include.fts.client.credentials import BearerToken, Credential, X509Files
from include.fts.errors import (
    CREDENTIAL_UNREADABLE,
    FTS_REPLY_UNEXPECTED,
    FTS_TLS_FAILED,
    TOKEN_UNPROTECTED,
    FtsError,
    FtsErrorKind,
    FtsReplyLost,
    FtsUnreachable,
    SubmitUnclear,
    kind_of,
    kind_of_foreign,
    redact,
)
from include.http_calls import CallFailure, failure_of, may_carry_token, pooled_session, repeated

_CONNECTIONS = 8
_CONNECT_S = 10.0
_PIECE = 1 << 16
_SHORTEST_TOKEN = 16  # what is shorter may be a part of other words
MOST_REPLY = 64 << 20
"""Bytes of a reply; 100 jobs of 100 files are 5 MB."""


@dataclass(frozen=True, slots=True)
class FtsCall:
    """A request.

    Attributes:
        method: The HTTP method.
        path: The path and query below the server's address.
        what: Names the request in errors.
        body: What is sent; None: nothing.
        content_type: Of the body.
        repeatable: It may be sent again although an earlier one may have arrived.
        submits: A lost reply leaves a job that may exist.
        job_id: The job that the request is about, if its id is known.
    """

    method: str
    path: str
    what: str
    body: bytes | None = field(default=None, repr=False)
    content_type: str | None = "application/json"
    repeatable: bool = True
    submits: bool = False
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class FtsReply:
    """A reply as it came. ``body``: None if it is larger than it may be."""

    status: int
    body: bytes | None = field(repr=False)

    def value(self) -> Any:
        """The JSON of the body. Raises ValueError."""
        if self.body is None:
            raise ValueError("too large")
        try:
            return json.loads(self.body, parse_constant=lambda _: None)
        except RecursionError:
            raise ValueError("too deep") from None

    def message(self) -> str | None:
        """The text of an error in FTS's form, None for another form."""
        try:
            value = self.value()
        except ValueError:
            return None
        found = [value.get(name) for name in ("message", "http_message")] if isinstance(value, dict) else []
        return next((text for text in found if isinstance(text, str)), None)


class FtsTransport:
    """A session to one server.

    Args:
        url: ``https://host:8446``.
        credential: Who we are; None: anonymous.
        authorities: A PEM bundle, or a folder of hashed names, for the server's certificate; None: the system's.
        timeout_s: Seconds that a reply may take.
        retries: How often a call is repeated.
        pause: Waits before a repetition, for some seconds; None: sleeps.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        url: str,
        credential: Credential | None,
        *,
        authorities: str | None,
        timeout_s: float,
        retries: int,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self.with_token = isinstance(credential, BearerToken)
        if self.with_token and not may_carry_token(self.url):
            raise TOKEN_UNPROTECTED(f"FTS server {self.url}: token not sent; {TOKEN_UNPROTECTED.hint}")
        self._token = credential.token.encode() if isinstance(credential, BearerToken) else b""
        self._timeout_s = timeout_s
        self._retries = retries
        self._pause = pause or threading.Event().wait
        self._clock = clock
        self._session = pooled_session(_CONNECTIONS)
        self._session.headers["Accept"] = "application/json"
        if isinstance(credential, BearerToken):
            self._session.headers["Authorization"] = f"Bearer {credential.token}"
        elif isinstance(credential, X509Files):
            self._session.cert = (credential.certificate, credential.key or credential.certificate)
        if authorities:
            self._session.verify = authorities

    def close(self) -> None:
        self._session.close()

    def send(self, call: FtsCall) -> FtsReply:
        """Send a request, and again after an outage as often as it may be.

        Args:
            call: The request.

        Returns:
            The reply, whatever its status.

        Raises:
            FtsUnreachable: Nothing was sent.
            FtsReplyLost: It was sent; SubmitUnclear for a submission.
            FtsError: `FTS_TLS_FAILED`: the two did not agree on certificates; `CREDENTIAL_UNREADABLE`: a file of the
                credential cannot be read.
        """
        outcome = repeated(
            lambda: self._once(call), repeatable=call.repeatable, retries=self._retries, pause=self._pause
        )
        if isinstance(outcome, FtsReply):
            return outcome
        # raised outside of any except block, so that no traceback carries the library's message with its URL
        if outcome.sent and call.submits:
            raise self._error(SubmitUnclear, call, outcome.why)
        if outcome.tls:
            raise self._error(FTS_TLS_FAILED, call, outcome.why)
        raise self._error(FtsReplyLost if outcome.sent else FtsUnreachable, call, outcome.why)

    def value(self, call: FtsCall, parse: Callable[[Any], Any]) -> Any:
        """Send a request whose reply is JSON.

        Args:
            call: The request.
            parse: Makes a value of the JSON; raises ValueError for another form.

        Returns:
            What ``parse`` returns.

        Raises:
            FtsError: As `checked`; `FTS_REPLY_UNEXPECTED`: the reply has another form.
        """
        reply = self.checked(call)
        try:
            return parse(reply.value())
        except ValueError:
            raise self.unexpected(call, reply) from None

    def checked(self, call: FtsCall) -> FtsReply:
        """Send a request that has to be done.

        Args:
            call: The request.

        Returns:
            The reply, of success.

        Raises:
            FtsError: As `send`; and the error for a refusal (`include.fts.errors`).
        """
        reply = self.send(call)
        if 200 <= reply.status < 300:
            return reply
        if call.submits and reply.status >= 500:
            # the server may have failed after it stored the job
            raise self._error(SubmitUnclear, call, _beginning(reply), reply.status)
        raise self.refused(call, reply)

    def refused(self, call: FtsCall, reply: FtsReply) -> FtsError:
        """The error for a reply."""
        reason = reply.message()
        if reason is None:
            detail = _beginning(reply)
            kind = kind_of_foreign(reply.status, detail, with_token=self.with_token)
        else:
            kind, detail = kind_of(reply.status, reason), reason[:1000]
        return self._error(kind, call, detail, reply.status, reason)

    def unexpected(self, call: FtsCall, reply: FtsReply) -> FtsError:
        """The error for a reply of success in a form that FTS does not use."""
        kind = SubmitUnclear if call.submits else FTS_REPLY_UNEXPECTED
        return self._error(kind, call, _beginning(reply), reply.status)

    def _error(
        self, kind: FtsErrorKind, call: FtsCall, detail: str, status: int | None = None, reason: str | None = None
    ) -> FtsError:
        message = f"FTS server {self.url}: {call.what}: {detail}; {kind.hint}"
        return kind(message, job_id=call.job_id, status=status, reason=reason)

    def _once(self, call: FtsCall) -> FtsReply | CallFailure:
        headers = {"Content-Type": call.content_type} if call.body is not None and call.content_type else {}
        ends = self._clock() + self._timeout_s
        try:
            with self._session.request(
                call.method, self.url + call.path, data=call.body, headers=headers, stream=True,
                timeout=(min(_CONNECT_S, self._timeout_s), self._timeout_s), allow_redirects=False,
            ) as response:  # fmt: skip
                return self._read(response, ends)
        except (requests.RequestException, HTTPError) as error:
            return failure_of(error)
        except OSError as error:
            # of the library's check of the files of the credential; it names the file
            fault = str(error)
        raise CREDENTIAL_UNREADABLE(f"{fault}; {CREDENTIAL_UNREADABLE.hint}")

    def _read(self, response: requests.Response, ends: float) -> FtsReply | CallFailure:
        body = bytearray()
        # read1 returns what has come, so that a server that sends drop by drop is found out
        while piece := response.raw.read1(_PIECE, decode_content=True):
            body += piece
            if len(body) > MOST_REPLY:
                return FtsReply(response.status_code, None)
            if self._clock() > ends:
                return CallFailure(True, "no whole reply in time")
        return FtsReply(response.status_code, self._without_token(bytes(body)))

    def _without_token(self, body: bytes) -> bytes:
        """The body of a server that repeats our token, which then would be in errors and in states of jobs."""
        return body.replace(self._token, b"<token>") if len(self._token) >= _SHORTEST_TOKEN else body


def _beginning(reply: FtsReply) -> str:
    """What a message may show of a reply that is not in FTS's form."""
    text = "too large" if reply.body is None else repr(redact(reply.body[:2000].decode(errors="replace"))[:200])
    return f"HTTP {reply.status}, {text}"
