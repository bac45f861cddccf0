"""What the S3 servers of the lab have in common: an endpoint, its owner's key pair, and users without rights."""

from __future__ import annotations

from abc import abstractmethod

from include.storage.buckets import PolicyServer
from include.storage.kinds import Credentials, StoreOptions
from include.storage.open import open_store
from include.storage.store import Store
from lab.servers.process import OwnServer


class S3Server(OwnServer):
    """A server that runs while the context lasts. ``credentials`` own all buckets."""

    kind: PolicyServer
    credentials: Credentials

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """The S3 URL, without bucket."""

    def options(self, **settings: object) -> StoreOptions:
        """Store options for this server."""
        return StoreOptions(**{"endpoint": self.endpoint, **settings})  # type: ignore[arg-type]

    def store(self, bucket: str, prefix: str = "") -> Store:
        """A store in a bucket of this server; the bucket must exist."""
        return open_store(f"s3://{bucket}/{prefix}", credentials=self.credentials, options=self.options())

    def public_url(self, bucket: str, prefix: str = "") -> str:
        """Return where a bucket, or what is below a prefix of it, can be read without credentials if a policy allows
        it."""
        return f"{self.endpoint}/{bucket}/{prefix}".rstrip("/")
