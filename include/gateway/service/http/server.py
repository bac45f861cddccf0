"""Runs the gateway service: one process, bound to loopback unless configured otherwise, until it is stopped."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from functools import partial

import uvicorn

from include.addresses import is_loopback
from include.gateway.service.clock import Clock
from include.gateway.service.commits.points import OnPoint
from include.gateway.service.commits.queue import Committer
from include.gateway.service.config import ConfigError, ServiceConfig
from include.gateway.service.http.app import create_app
from include.gateway.service.http.serving import ReadConfig, log_not_served
from include.http_bounds import BoundedHttp, Bounds

log = logging.getLogger(__name__)

_SWITCH_S = 0.001  # a thread that merges lets lease calls in between so often; Python's own 5 ms add up to their reply


def serve(
    config: ServiceConfig,
    *,
    committer: Committer | None = None,
    clock: Clock | None = None,
    ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    on_point: OnPoint | None = None,
    read_config: ReadConfig | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until ``stop`` is set; ``ready`` gets the URL once connections are accepted.

    Raises ConfigError if the port or the state is taken, the certificate cannot be used, or the address is open to
    others with neither a certificate nor ``insecure``.
    """
    if not (config.certificate or config.insecure or is_loopback(config.host)):
        raise ConfigError(
            f"gateway does not listen on {config.host}: requests are not encrypted; set `gateway.certificate` and"
            " `gateway.private_key`, or `gateway.insecure` where the network is trusted"
        )
    tls = _tls(config)
    sys.setswitchinterval(_SWITCH_S)
    app = create_app(config, committer=committer, clock=clock, on_point=on_point, read_config=read_config)
    metrics = app.state.serving.metrics
    limits = config.limits
    bounds = Bounds(limits.head_s, limits.connections, lambda limit: metrics.limited.labels(limit).inc())
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="on", workers=1, ws="none",
            http=partial(BoundedHttp, bounds=bounds),  # type: ignore[arg-type]
            ssl_context_factory=(lambda *_: tls) if tls else None,
            backlog=512,
            timeout_keep_alive=75, timeout_graceful_shutdown=round(config.stop_timeout_s),
        )
    )  # fmt: skip
    logging.getLogger("uvicorn.access").disabled = True  # it logs URLs, and the protocol puts tokens into them
    if stop is not None:
        threading.Thread(target=_stop_when, args=(stop, server), daemon=True).start()
    log.info("gateway listening", extra={"fields": {"url": url, "repositories": sorted(config.repositories)}})
    log_not_served(config)
    if ready is not None:
        ready(url)
    server.run(sockets=[listener])


def _tls(config: ServiceConfig) -> ssl.SSLContext | None:
    if config.certificate is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(config.certificate, config.private_key)
    except OSError as error:
        raise ConfigError(
            f"gateway certificate {config.certificate}: {error}; give the PEM files of a certificate and its key"
        ) from None
    return context


def _listen(config: ServiceConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"gateway cannot listen on {config.host} port {config.port}: {error}; choose another port"
        ) from None
    listener.set_inheritable(False)
    return listener


def _stop_when(stop: threading.Event, server: uvicorn.Server) -> None:
    stop.wait()
    server.should_exit = True
