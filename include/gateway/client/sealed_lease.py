"""A lease on its way from one process to another: its token encrypted, so that reading it gives no right.

The key is derived from the secret of the gateway's key: who can read the token could have taken the lease.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from include.gateway.client.values import Lease
from include.gateway.errors import SEALED_LEASE_UNREADABLE
from include.gateway.paths import LeasePath

_USE = b"nightshift sealed lease 1"


def seal(lease: Lease, secret: str, *, now: datetime) -> dict[str, Any]:
    """The lease as JSON. ``now`` (with zone) and the lease's own clock give its end, if the gateway reported it."""
    left_s = None if lease.expires_monotonic is None else lease.expires_monotonic - time.monotonic()
    expires = None if left_s is None else (now + timedelta(seconds=left_s)).isoformat(timespec="seconds")
    body = json.dumps(asdict(replace(lease, expires_monotonic=None))).encode()
    return {
        "repository": lease.repository,
        "path": lease.path,
        "holder": lease.hostname,
        "expires": expires,
        "sealed": _box(secret).encrypt(body).decode(),
    }


def unseal(value: Mapping[str, Any], secret: str, *, now: datetime) -> Lease:
    """What ``seal`` made, by the same secret. Raises SEALED_LEASE_UNREADABLE."""
    try:
        lease = Lease(**json.loads(_box(secret).decrypt(str(value["sealed"]).encode())))
        if value["expires"] is None:
            return lease
        left_s = (datetime.fromisoformat(value["expires"]) - now).total_seconds()
    except (InvalidToken, KeyError, TypeError, ValueError):
        where = LeasePath(str(value.get("repository", "")), str(value.get("path", "")))
        what = f"the lease on {where} that an earlier task took cannot be read"
        raise SEALED_LEASE_UNREADABLE(f"{what}; {SEALED_LEASE_UNREADABLE.hint}") from None
    return replace(lease, expires_monotonic=time.monotonic() + left_s)


def _box(secret: str) -> Fernet:
    key = HKDF(SHA256(), 32, salt=None, info=_USE).derive(secret.encode())
    return Fernet(base64.urlsafe_b64encode(key))
