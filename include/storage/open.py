"""Stores by URL: ``file:///folder``, ``s3://bucket/prefix``, and read-only ``http(s)://host/path``."""

from __future__ import annotations

from include.storage.kinds import Credentials, StoreOptions, kind_of
from include.storage.store import Store
from include.storage.urls import DEFAULTS

__all__ = ["Credentials", "StoreOptions", "open_store"]


def open_store(url: str, *, credentials: Credentials | None = None, options: StoreOptions = DEFAULTS) -> Store:
    """Open the store at ``file:///folder``, ``s3://bucket/prefix`` or ``http(s)://host/path``; nothing is sent yet.

    ``credentials``: the key pair for ``s3://``, which is read anonymously without; ignored for other schemes. Raises
    StoreError for a malformed URL or endpoint.
    """
    return kind_of(url).opens(url, credentials, options)
