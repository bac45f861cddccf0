"""HTTP as FTS speaks it, with a bearer token, a certificate or a signed proxy."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from urllib3.exceptions import HTTPError

from include.fts import errors
from include.http_calls import CallFailure, failure_of, may_carry_token, pooled_session, repeated

_CLOCK_SKEW = timedelta(minutes=5)
_SMALLEST_RSA = 2048
_PROXY_CERT_INFO = x509.UnrecognizedExtension(
    # ProxyCertInfo { ProxyPolicy { policyLanguage id-ppl-inheritAll } }
    x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14"), bytes.fromhex("300c300a06082b06010505071501")
)  # fmt: skip


def signed_proxy(request_pem: bytes, credential: X509Credential, *, lifetime: timedelta, now: datetime) -> bytes:
    """The chain that is sent to the server: the proxy, then our certificates; no key.

    Args:
        request_pem: The server's certificate request.
        credential: Our proxy or certificate.
        lifetime: How long the proxy lasts; never longer than the credential.
        now: The time, UTC.

    Returns:
        The chain in PEM.

    Raises:
        FtsError: `FTS_REPLY_UNEXPECTED`: the request is malformed, not signed by its own key, or of a weak key;
            `PROXY_EXPIRED`: the credential has ended.
    """
    key = _key_of(request_pem)
    if credential.expires <= now:
        raise errors.PROXY_EXPIRED(
            f"our credential ended at {credential.expires:%Y-%m-%dT%H:%M:%SZ}; {errors.PROXY_EXPIRED.hint}"
        )
    issuer = credential.chain[0].subject
    serial = x509.random_serial_number()
    name = x509.Name(
        [*issuer.rdns, x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.COMMON_NAME, f"{serial}")])]
    )
    usage = x509.KeyUsage(
        digital_signature=True, key_encipherment=True, content_commitment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    proxy = (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=name, public_key=key, serial_number=serial)
        .not_valid_before(
            max(now - _CLOCK_SKEW, *(certificate.not_valid_before_utc for certificate in credential.chain))
        )
        .not_valid_after(min(now + lifetime, credential.expires))
        .add_extension(usage, critical=True)
        .add_extension(_PROXY_CERT_INFO, critical=True)
        .sign(credential.key, hashes.SHA256())
    )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in (proxy, *credential.chain))


def _key_of(request_pem: bytes) -> rsa.RSAPublicKey:
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        fits = request.is_signature_valid and isinstance(key, rsa.RSAPublicKey) and key.key_size >= _SMALLEST_RSA
    except Exception as error:  # noqa: BLE001 - the parser has no error of its own for all that can be wrong
        raise errors.FTS_REPLY_UNEXPECTED(
            f"the request for a proxy cannot be read ({type(error).__name__}); {errors.FTS_REPLY_UNEXPECTED.hint}"
        ) from None
    if not fits or not isinstance(key, rsa.RSAPublicKey):
        raise errors.FTS_REPLY_UNEXPECTED(
            f"the request for a proxy is not signed by an RSA key of at least {_SMALLEST_RSA} bits; "
            f"{errors.FTS_REPLY_UNEXPECTED.hint}"
        )
    return key


_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token (JWT) that goes with every request."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class X509Files:
    """Paths of a certificate and its key; ``key``: None for a proxy, which has its key in the same file."""

    certificate: str
    key: str | None = None

    def read(self) -> X509Credential:
        """The credential itself, for delegation. Raises CREDENTIAL_UNREADABLE, which names the file."""
        path = self.certificate
        try:
            chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
            path = self.key or path
            found = _KEY.search(Path(path).read_bytes())
            key = load_pem_private_key(found[0] if found else b"", password=None)
        except (OSError, ValueError, TypeError):
            # not quoted: the library's message may have bytes of the key
            fault = "cannot be read as PEM"
        else:
            if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
                fault = "has a key that is neither RSA nor EC"
            elif key.public_key() != chain[0].public_key():
                fault = f"is not the key of the first certificate of {self.certificate}"
            else:
                return X509Credential(tuple(chain), key)
        raise errors.CREDENTIAL_UNREADABLE(f"{path} {fault}; {errors.CREDENTIAL_UNREADABLE.hint}")


@dataclass(frozen=True, slots=True)
class X509Credential:
    """A certificate with those that lead to its authority, and its key."""

    chain: tuple[x509.Certificate, ...]
    key: RSAPrivateKey | EllipticCurvePrivateKey = field(repr=False)

    @property
    def expires(self) -> datetime:
        """When the first of the certificates ends, UTC."""
        return min(certificate.not_valid_after_utc for certificate in self.chain)


Credential = BearerToken | X509Files

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
            raise errors.TOKEN_UNPROTECTED(f"FTS server {self.url}: token not sent; {errors.TOKEN_UNPROTECTED.hint}")
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
            raise self._error(errors.SubmitUnclear, call, outcome.why)
        if outcome.tls:
            raise self._error(errors.FTS_TLS_FAILED, call, outcome.why)
        raise self._error(errors.FtsReplyLost if outcome.sent else errors.FtsUnreachable, call, outcome.why)

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
            raise self._error(errors.SubmitUnclear, call, _beginning(reply), reply.status)
        raise self.refused(call, reply)

    def refused(self, call: FtsCall, reply: FtsReply) -> errors.FtsError:
        """The error for a reply."""
        reason = reply.message()
        if reason is None:
            detail = _beginning(reply)
            kind = errors.kind_of_foreign(reply.status, detail, with_token=self.with_token)
        else:
            kind, detail = errors.kind_of(reply.status, reason), reason[:1000]
        return self._error(kind, call, detail, reply.status, reason)

    def unexpected(self, call: FtsCall, reply: FtsReply) -> errors.FtsError:
        """The error for a reply of success in a form that FTS does not use."""
        kind = errors.SubmitUnclear if call.submits else errors.FTS_REPLY_UNEXPECTED
        return self._error(kind, call, _beginning(reply), reply.status)

    def _error(
        self,
        kind: errors.FtsErrorKind,
        call: FtsCall,
        detail: str,
        status: int | None = None,
        reason: str | None = None,
    ) -> errors.FtsError:
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
        raise errors.CREDENTIAL_UNREADABLE(f"{fault}; {errors.CREDENTIAL_UNREADABLE.hint}")

    def _read(self, response: requests.Response, ends: float) -> FtsReply | CallFailure:
        body = bytearray()
        # read1 returns what has come, so that a server that sends drop by drop is found out
        while piece := response.raw.read1(_PIECE, decode_content=True):
            body += piece
            if len(body) > MOST_REPLY:
                return FtsReply(response.status_code, None)
            if self._clock() > ends:
                return CallFailure(True, "no whole reply in time")
        if len(self._token) >= _SHORTEST_TOKEN:
            # a server may repeat it, and then it would be in errors and in states of jobs
            body = body.replace(self._token, b"<token>")
        return FtsReply(response.status_code, bytes(body))


def _beginning(reply: FtsReply) -> str:
    """Return what a message may show of a reply that is not in FTS's form."""
    text = "too large" if reply.body is None else repr(errors.redact(reply.body[:2000].decode(errors="replace"))[:200])
    return f"HTTP {reply.status}, {text}"
