"""What every call reads of a request: its body within limits, its signature, and where it comes from."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from include.gateway.service.replies import Malformed
from include.gateway.service.requests import BODY_BYTES

_BODY_TIMEOUT_S = 30.0


async def read_body(request: Request) -> bytes:
    """The whole body. Raises Malformed above the limit, or when it does not arrive in time."""
    found = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for block in request.stream():
                found += block
                if len(found) > BODY_BYTES:
                    raise Malformed(413, f"request body too large: at most {BODY_BYTES} bytes")
    except TimeoutError:
        raise Malformed(408, "request body did not arrive in time") from None
    return bytes(found)


def signature_of(request: Request) -> str | None:
    """The Authorization header."""
    return request.headers.get("authorization")


def remote_of(request: Request) -> str:
    """Address and port of the caller."""
    return f"{request.client.host}:{request.client.port}" if request.client else "unknown"


def is_utf8(raw_path: bytes) -> bool:
    """Whether a raw path is UTF-8; the server replaces what is not."""
    try:
        unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
