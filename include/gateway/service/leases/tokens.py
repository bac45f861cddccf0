"""The tokens of leases: 32 bytes in base32, as long as the stock gateway's, 52 characters and ``====``."""

from __future__ import annotations

import base64
import hmac
import secrets


def new_token() -> str:
    """Drawn by chance."""
    return base64.b32encode(secrets.token_bytes(32)).decode()


def token_of(secret: str, request: bytes, epoch: int) -> str:
    """That of a request with a number of its own: found again from the same request, so that nothing is kept for it."""
    return base64.b32encode(hmac.digest(secret.encode(), b"lease %d\n%b" % (epoch, request), "sha256")).decode()
