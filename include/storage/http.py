"""Reading a store through its public URL, anonymously: what every client of a repository does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, Self

from include.storage.errors import StoreError, Unsupported
from include.storage.kinds import HTTP
from include.storage.options import StoreOptions
from include.storage.remote import NO_RETRIES, RemoteStore, ServerConnection, client_options
from include.storage.store import ObjectMeta, Version

if TYPE_CHECKING:
    from obstore.store import HTTPStore


class HttpStore(RemoteStore):
    """Read-only objects below an ``http://`` or ``https://`` URL."""

    kind = HTTP

    @classmethod
    def open(cls, url: str, options: StoreOptions) -> Self:
        """No request is sent yet."""

        def make() -> HTTPStore:
            from obstore.store import HTTPStore as Client

            return Client(url, client_options=client_options(options), retry_config=NO_RETRIES)

        return cls(url, ServerConnection(url, options, make))

    def child(self, prefix: str) -> HttpStore:
        below = self._child_prefix(prefix)
        if below == self._prefix:
            return self
        return HttpStore(f"{self.url.rstrip('/')}/{prefix.rstrip('/')}", self._connection, below)

    def put(self, key: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse("put", key)

    def put_if_absent(self, key: str, data: bytes) -> bool:  # noqa: ARG002
        self._refuse("put_if_absent", key)

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:  # noqa: ARG002
        self._refuse("replace", key)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        self._refuse("list", prefix)

    def delete(self, keys: Iterable[str]) -> int:
        self._refuse("delete", next(iter(keys), ""))

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        self._refuse("delete", next(iter(keys), ""))

    def _refuse(self, verb: str, key: str) -> NoReturn:
        raise Unsupported(
            f"{verb} {key!r}: {self.url} is read-only over HTTP; use the store's s3:// or file:// URL", key=key
        )
