"""The gateway's Authorization header: ``<key id> base64(hex(HMAC-SHA1(secret, message)))`` (docs/formats.md, gateway).

The message is the request body, the session token, or the URL path, depending on the call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac


def sign(secret: str, message: bytes) -> str:
    """The signature: base64 of the 40 lower-case hex digits, not of the raw digest."""
    digits = hmac.new(secret.encode(), message, hashlib.sha1).hexdigest()
    return base64.b64encode(digits.encode()).decode()


def authorization(key_id: str, secret: str, message: bytes) -> str:
    """The header's value."""
    return f"{key_id} {sign(secret, message)}"


def split_authorization(header: str | None) -> tuple[str, str] | None:
    """Key id and signature; ``None`` if the header is absent or not two fields around one blank."""
    fields = (header or "").split(" ")
    return (fields[0], fields[1]) if len(fields) == 2 and all(fields) else None


def signature_fits(signature: str, secret: str, message: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), sign(secret, message).encode())


def sign_body(secret: str, token: str, body: bytes) -> str:
    """The signature of a call on a lease that covers its body too: HMAC-SHA256 in hex of token, newline and body."""
    return hmac.new(secret.encode(), token.encode() + b"\n" + body, hashlib.sha256).hexdigest()


def body_signature_fits(signature: str, secret: str, token: str, body: bytes) -> bool:
    """Compare in constant time."""
    expected = hmac.new(secret.encode(), token.encode("utf-8", "replace") + b"\n" + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), expected.encode())
