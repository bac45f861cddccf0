"""Kinds of stores with the schemes of their URLs, which are known only here, and options with which they are opened."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from include.storage.errors import StoreError

if TYPE_CHECKING:
    from include.storage.store import Store

Fsync = Literal["always", "switch", "never"]
"""When a file store flushes: at each write, before each switch of a manifest, or never (docs/decisions, 6)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An S3 key pair. The secret is in no repr."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Traits:
    """Conditions that a store was seen to keep under racing writers (``include.storage.probe``)."""

    put_if_absent: bool
    replace: bool
    bulk_delete: bool
    anonymous_read: bool | None = None
    """None: not tried, no public URL was given."""
    etag_quotes: bool = True
    """False: the server takes an ETag in If-Match only without its quotes."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a connection to a store. Settings that do not concern a kind of store are ignored by it."""

    endpoint: str | None = None
    """S3: scheme, host and port. None: AWS's own of ``region``."""
    region: str = "us-east-1"
    addressing: Literal["path", "virtual"] = "path"
    connections: int = 64
    """Requests of one process in flight at the same time, and connections kept open."""
    timeout_s: float = 30
    """Seconds until the answer begins, and between two pieces of its body."""
    retries: int = 5
    """Further attempts after 429, 5xx, time-outs and dropped connections."""
    sign_payload: bool = True
    """S3: the signature covers the bytes of a PUT too, whose SHA-256 the client makes before it sends them."""
    acl: str | None = None
    """S3: canned ACL sent with every PUT, for stores where a bucket policy does not do."""
    traits: Traits | None = None
    """Traits as probed. None: assume that the store keeps conditions, and learn how it spells ETags."""
    single_writer: bool = False
    """The caller guarantees to be the only writer of mutable objects: ``replace`` works where If-Match is ignored."""
    fsync: Fsync = "switch"
    """File stores: when what is written is made to survive a power failure."""


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Properties of every store of a kind, opened or not. Nothing has a default, so that a new kind decides it all."""

    name: str
    is_local: bool
    """It is files of this machine: read unverified where no key is given, and switched without a lease."""
    writable: bool
    """False: it can only be read."""
    opens: Callable[[str, Credentials | None, StoreOptions], Store] = field(repr=False, compare=False)


def _open(module: str, url: str, credentials: Credentials | None, options: StoreOptions) -> Store:
    """Open by the ``open_url`` of a module, imported here: clients of servers are heavy, and need these kinds."""
    store: Store = importlib.import_module(module).open_url(url, credentials, options)
    return store


FILE = StoreKind("file", is_local=True, writable=True, opens=partial(_open, "include.storage.file"))
S3 = StoreKind("s3", is_local=False, writable=True, opens=partial(_open, "include.storage.s3"))
HTTP = StoreKind("http", is_local=False, writable=False, opens=partial(_open, "include.storage.remote"))

SCHEMES: Mapping[str, StoreKind] = {"file": FILE, "s3": S3, "http": HTTP, "https": HTTP}


def kind_of(url: str) -> StoreKind:
    """The kind of a store, by the scheme of its URL alone. Raises StoreError if that names none."""
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
