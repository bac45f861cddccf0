"""Stores by URL: ``file:///folder``, ``s3://bucket/prefix``, and read-only ``http(s)://host/path``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from include.storage.errors import StoreError
from include.storage.kinds import FILE, HTTP, S3, Credentials, StoreKind, StoreOptions, Traits, kind_of, shown
from include.storage.store import Store
from include.storage.urls import DEFAULTS, split_s3_url

__all__ = ["Credentials", "StoreOptions", "Traits", "open_store", "split_s3_url"]


def open_store(url: str, *, credentials: Credentials | None = None, options: StoreOptions = DEFAULTS) -> Store:
    """Open the store at ``file:///folder``, ``s3://bucket/prefix`` or ``http(s)://host/path``. Nothing is asked of it
    yet.

    ``credentials``: the key pair for ``s3://``, which is read anonymously without. Raises StoreError for a malformed
    URL or endpoint.
    """
    return OPENERS[kind_of(url)](url, credentials, options)


def _open_file(url: str, credentials: Credentials | None, options: StoreOptions) -> Store:  # noqa: ARG001
    from include.storage.file import FileStore

    host, slash, path = url.partition("://")[2].partition("/")
    if not slash or host not in ("", "localhost"):
        raise StoreError(f"store URL {url!r}: write file:///absolute/folder, with three slashes", key="")
    folder = "/" + unquote(path).strip("/")
    if "\0" in folder or ".." in folder.split("/"):
        raise StoreError(f'store URL {url!r}: the folder may not contain ".." or a NUL', key="")
    return FileStore(Path(folder), fsync=options.fsync)


def _open_s3(url: str, credentials: Credentials | None, options: StoreOptions) -> Store:
    from include.storage.s3 import S3Store

    bucket, prefix = split_s3_url(url)
    if options.endpoint is not None:
        _check_http(options.endpoint, "endpoint")
    return S3Store.open(bucket, prefix, credentials, options)


def _open_http(url: str, credentials: Credentials | None, options: StoreOptions) -> Store:  # noqa: ARG001
    from include.storage.remote import HttpStore

    _check_http(url)
    return HttpStore.open(url.rstrip("/"), options)


def _check_http(url: str, what: str = "store URL") -> None:
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


OPENERS: Mapping[StoreKind, Callable[[str, Credentials | None, StoreOptions], Store]] = {
    FILE: _open_file,
    S3: _open_s3,
    HTTP: _open_http,
}
