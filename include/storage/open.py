"""Stores by URL: ``file:///folder``, ``s3://bucket/prefix``, read-only ``http(s)://host/path``; refusals of others."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from include.storage.errors import BadKey, StoreError
from include.storage.kinds import Credentials, StoreOptions, kind_of, shown
from include.storage.store import Store, check_prefix

__all__ = ["DEFAULTS", "Credentials", "StoreOptions", "check_http", "open_store", "split_s3_url"]

DEFAULTS = StoreOptions()
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_store(url: str, *, credentials: Credentials | None = None, options: StoreOptions = DEFAULTS) -> Store:
    """Open the store at ``file:///folder``, ``s3://bucket/prefix`` or ``http(s)://host/path``; nothing is sent yet.

    ``credentials``: the key pair for ``s3://``, which is read anonymously without; ignored for other schemes. Raises
    StoreError for a malformed URL or endpoint.
    """
    return kind_of(url).opens(url, credentials, options)


def split_s3_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://bucket/prefix``; the prefix without slashes at its ends, "" for the whole bucket."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise StoreError(
            f"store URL {shown(url)!r}: no usable bucket name; write s3://bucket/prefix, and the host as 'endpoint'",
            key="",
        )
    try:
        return bucket, check_prefix(prefix)
    except BadKey as error:
        raise StoreError(f"store URL {shown(url)!r}: {error}", key="") from None


def check_http(url: str, what: str = "store URL") -> None:
    """Raises StoreError unless the URL is an address over HTTP without a secret in it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise StoreError(f"{what} {shown(url)!r}: write http://host:port or https://host", key="")
    if parts.username is not None or parts.password is not None:
        raise StoreError(f"{what} {shown(url)!r}: credentials do not belong into a URL; use a connection", key="")
    if parts.query or parts.fragment:
        raise StoreError(f"{what} {shown(url)!r}: a store has neither query nor fragment", key="")
