"""The kinds of stores, and the schemes of URLs that name them: the only place that knows schemes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from include.storage.errors import StoreError


@dataclass(frozen=True, slots=True)
class StoreKind:
    """What holds for every store of a kind, opened or not. Nothing has a default, so that a new kind decides it all."""

    name: str
    is_local: bool
    """It is files of this machine: read unverified where no key is given, and switched without a lease."""
    writable: bool
    """False: it can only be read."""


FILE = StoreKind("file", is_local=True, writable=True)
S3 = StoreKind("s3", is_local=False, writable=True)
HTTP = StoreKind("http", is_local=False, writable=False)

SCHEMES: Mapping[str, StoreKind] = {"file": FILE, "s3": S3, "http": HTTP, "https": HTTP}


def kind_of(url: str) -> StoreKind:
    """The kind of a store, by the scheme of its URL alone.

    Args:
        url: The store's URL.

    Returns:
        The kind.

    Raises:
        StoreError: The scheme names no kind.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise StoreError(
            f"store URL {shown(url)!r}: no scheme; write file:///folder, s3://bucket/prefix or http://…", key=""
        )
    kind = SCHEMES.get(scheme.lower())
    if kind is None:
        raise StoreError(f"store URL {shown(url)!r}: unknown scheme {scheme!r}; use {_listed()}", key="")
    return kind


def shown(url: str) -> str:
    """The URL as it may appear in a message: without credentials and without what follows a question mark."""
    return re.sub(r"(?<=//)[^/@]*@", "***@", url).partition("?")[0]


def _listed() -> str:
    *others, last = SCHEMES
    return f"{', '.join(others)} or {last}"
