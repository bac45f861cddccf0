"""Runs the service: one process on loopback, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from include.http_bounds import BoundedHttp, ConnectionLimits
from lab.fts.callers import subject_of
from lab.fts.config import FtsServiceConfig
from lab.fts.copies.real import real_copiers
from lab.fts.errors import FtsServiceError
from lab.fts.http.app import SUBJECT, create_fts_app

log = logging.getLogger(__name__)

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class CertifiedHttp(BoundedHttp):
    """A connection that knows the certificate of its client."""

    _subject: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        self._subject = subject_of(certificate) if certificate else None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[SUBJECT] = self._subject


def serve_fts(config: FtsServiceConfig, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL once connections are accepted.

    Raises FtsServiceError: the settings, the port or the state file cannot be used.
    """
    if config.host not in _LOOPBACK:
        raise FtsServiceError(f"the FTS service listens on loopback only, not on {config.host}; use 127.0.0.1")
    context = _tls(config)
    app = create_fts_app(config, copiers=real_copiers(config))
    closed = partial(log.debug, "a connection was closed at the limit: %s")
    bounds = ConnectionLimits(config.head_s, config.connections, closed)
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    url = f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="on", workers=1, ws="none",
            http=partial(CertifiedHttp, bounds=bounds),  # type: ignore[arg-type]
            timeout_keep_alive=75, timeout_graceful_shutdown=5,
            ssl_context_factory=(lambda *_: context) if context else None,
        )
    )  # fmt: skip
    log.info("FTS service listening on %s", url)
    if ready is not None:
        ready(url)
    server.run(sockets=[listener])


def _tls(config: FtsServiceConfig) -> ssl.SSLContext | None:
    if config.certificate is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(config.certificate, config.key)
        if config.authorities is not None:
            context.load_verify_locations(config.authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_ALLOW_PROXY_CERTS
    except (OSError, ssl.SSLError) as error:
        raise FtsServiceError(f"TLS cannot be configured with {config.certificate}: {error}") from None
    return context


def _listen(config: FtsServiceConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        text = f"the FTS service cannot listen on {config.host} port {config.port}: {error}; choose another port"
        raise FtsServiceError(text) from None
    listener.set_inheritable(False)
    return listener
