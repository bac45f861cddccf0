"""What is needed to open a store besides its URL: credentials, settings, and what the store was seen to keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Fsync = Literal["always", "switch", "never"]
"""When a file store flushes: at each write, before each switch of a manifest, or never (docs/decisions, 6)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An S3 key pair. The secret is in no repr."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a store was seen to keep under racing writers (``include.storage.probe``)."""

    put_if_absent: bool
    replace: bool
    bulk_delete: bool
    anonymous_read: bool | None = None
    """None: not tried, no public URL was given."""
    etag_quotes: bool = True
    """False: the server takes an ETag in If-Match only without its quotes."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to talk to a store. Settings that do not concern a kind of store are ignored by it."""

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
    """As probed. None: assume that the store keeps conditions, and learn how it spells ETags."""
    single_writer: bool = False
    """The caller guarantees to be the only writer of mutable objects: ``replace`` works where If-Match is ignored."""
    fsync: Fsync = "switch"
    """File stores: when what is written is made to survive a power failure."""
