"""A call of one's own service: HTTP POST of JSON, signed with a key that only the two know (docs/formats.md)."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import requests

from include.care.notify.errors import NotifyError
from include.care.notify.message import Message
from include.settings.notify import Webhook
from include.settings.secrets import ConnectionSecrets
from include.settings.urls import base_url

SIGNATURE_HEADER = "X-Nightshift-Signature"
TIME_HEADER = "X-Nightshift-Timestamp"
KEY_HEADER = "X-Nightshift-Cause"
PAUSE_S = 1.0


def post(
    settings: Webhook,
    connection: ConnectionSecrets,
    message: Message,
    *,
    now_s: int,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Send one message; again after a growing pause if the service is away or answers 429 or 5xx. Raises NotifyError.

    A redirect is not followed: it is signed for the host of the connection. ``now_s``: Unix time that is signed.
    """
    url = base_url(connection, scheme="https")
    host = urlsplit(url).hostname or "unknown"
    body = json.dumps(message.to_json(), sort_keys=True).encode()
    headers = {"Content-Type": "application/json", TIME_HEADER: str(now_s), KEY_HEADER: cause_of(message.key)}
    if connection.password:
        headers[SIGNATURE_HEADER] = signature(connection.password, now_s, body)
    with requests.Session() as session:
        session.trust_env = False
        for left in range(settings.retries, -1, -1):
            try:
                reply = session.post(url, data=body, headers=headers, timeout=settings.timeout_s, allow_redirects=False)
            except requests.RequestException as error:
                # not quoted: its text has the URL, and that may be a secret
                fault = type(error).__name__
            else:
                if 200 <= reply.status_code < 300:
                    return
                fault = f"HTTP {reply.status_code}"
                if reply.status_code != 429 and reply.status_code < 500:
                    raise _failed(host, fault)
            if not left:
                raise _failed(host, f"{fault}, {settings.retries + 1} times")
            sleep(PAUSE_S * 2 ** (settings.retries - left))


def signature(secret: str, time_s: int, body: bytes) -> str:
    """`sha256=` and the HMAC-SHA256 of `<Unix time>.<body>` in hex: an old message cannot pass for a new one."""
    return "sha256=" + hmac.new(secret.encode(), f"{time_s}.".encode() + body, hashlib.sha256).hexdigest()


def cause_of(key: str) -> str:
    """The hash that identifies a cause in headers and in the ledger's index."""
    return hashlib.sha256(key.encode()).hexdigest()


def _failed(host: str, detail: str) -> NotifyError:
    return NotifyError(f"webhook at {host}: {detail}. Check the connection of `notify.webhook`.")
