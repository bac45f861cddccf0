"""The common part of S3 and plain HTTP stores: a client per process, reading, and repetition after a broken
connection."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from include.storage import errors
from include.storage.kinds import HTTP, Credentials, StoreOptions
from include.storage.open import check_http
from include.storage.store import Counters, ObjectMeta, Store, Version, check_key, check_prefix

if TYPE_CHECKING:
    import obstore
    from obstore.store import ClientConfig, HTTPStore, RetryConfig, S3Store

    Client = S3Store | HTTPStore
    from obstore.store import HTTPStore


T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


def pause_s(attempt: int, draw: float) -> float:
    """Seconds to wait after the failure of attempt 0, 1, ...: full jitter, ``draw`` being uniform in [0, 1)."""
    return draw * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 30))


def library_errors() -> tuple[type[Exception], ...]:
    """Return what obstore raises. A function, so that the library is imported only when something is wrong or used."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, NotImplementedError, ValueError)


class Retrier:
    """Runs requests, at most ``connections`` at a time, and repeats those that failed for a passing reason."""

    def __init__(
        self,
        where: str,
        counters: Counters,
        *,
        retries: int,
        connections: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.where = where
        self.retries = retries
        self._counters = counters
        self._slots = threading.BoundedSemaphore(connections)
        self._sleep = sleep

    def once(self, key: str, request: Callable[[], T]) -> T:
        """Return one attempt; its failure as a leaf of our tree."""
        try:
            with self._slots:
                return request()
        except errors.StoreError:
            raise
        except library_errors() as error:
            # The library's own text repeats itself over thirty lines; its content is in ours.
            raise errors.read_failure(error).error(key, self.where) from None

    def run(self, key: str, request: Callable[[], T]) -> T:
        """Attempts until one succeeds, fails for good, or the last allowed one failed."""
        attempt = 0
        while True:
            try:
                return self.once(key, request)
            except errors.Unavailable as failure:
                self.before_next(attempt, failure)
                attempt += 1

    def before_next(self, attempt: int, failure: errors.Unavailable) -> None:
        """Count and wait before the attempt that follows ``attempt``; raises ``failure`` if there is to be none."""
        if attempt >= self.retries:
            if attempt:
                raise errors.Unavailable(
                    f"{failure}; gave up after {attempt + 1} attempts. Start the store, or correct its address",
                    key=failure.key,
                    cause=failure.cause,
                )
            raise failure
        self._counters.retry(failure.cause)
        self._sleep(pause_s(attempt, random.random()))  # noqa: S311 - not a secret


class ServerConnection:
    """The way to one server, shared by a store and its children.

    The client is made when first used. The library's threads do not survive a fork: a child of a process that has used
    it would wait for ever, and gets an error instead.
    """

    def __init__(
        self, where: str, options: StoreOptions, make: Callable[[], Client], counters: Counters | None = None
    ) -> None:
        self.options = options
        self.counters = counters or Counters()
        self.retrier = Retrier(where, self.counters, retries=options.retries, connections=options.connections)
        self._make = make
        self._lock = threading.Lock()
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if os.getpid() != _library_process.setdefault("pid", os.getpid()):
            raise errors.Unsupported(
                "remote stores do not work in a process that was forked from one that has used them; "
                "start workers as programs of their own (subprocess), or fork before the first request",
                key="",
            )
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._make()
        return self._client


class RemoteStore(Store):
    """Reading over HTTP. ``prefix`` is "" or ends in a slash."""

    def __init__(self, url: str, connection: ServerConnection, prefix: str = "") -> None:
        self.url = url
        self.counters = connection.counters
        self._connection = connection
        self._retrier = connection.retrier
        self._prefix = prefix

    def get(self, key: str) -> bytes:
        import obstore

        path = self._full(key)
        # without the version, which is not needed here and makes the library build more objects
        data = self._retrier.run(key, lambda: bytes(obstore.get(self._client, path).bytes()))
        self.counters.add(gets=1, bytes_got=len(data))
        return data

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        import obstore

        path = self._full(key)

        def request() -> tuple[bytes, Version]:
            answer = obstore.get(self._client, path)
            return bytes(answer.bytes()), _version(answer.meta)

        data, version = self._retrier.run(key, request)
        self.counters.add(gets=1, bytes_got=len(data))
        return data, version

    def get_range(self, key: str, start: int, length: int) -> bytes:
        import obstore

        path = self._full(key)
        if length <= 0:
            return b""

        def request() -> bytes:
            try:
                return bytes(obstore.get_range(self._client, path, start=start, length=length))
            except library_errors() as error:
                refusal = errors.read_failure(error).refusal
                if refusal is errors.NO_RANGE:  # the object ends before
                    return b""
                if refusal is errors.RANGES_IGNORED:  # a server without ranges sends everything
                    return bytes(obstore.get(self._client, path).bytes())[start : start + length]
                raise

        data = self._retrier.run(key, request)
        self.counters.add(gets=1, bytes_got=len(data))
        return data

    def stream(self, key: str, *, block: int = 1 << 20) -> Iterator[bytes]:
        path = self._full(key)
        position, etag, attempt = 0, None, 0
        self.counters.add(gets=1)
        while True:
            try:
                answer = self._retrier.once(key, lambda: self._open(path, position, etag))  # noqa: B023 - runs at once
                etag = answer.meta["e_tag"]
                pieces = iter(answer.stream(min_chunk_size=block))
                while (piece := self._retrier.once(key, lambda: next(pieces, None))) is not None:  # noqa: B023
                    data = bytes(piece)
                    position += len(data)
                    attempt = 0
                    self.counters.add(bytes_got=len(data))
                    yield data
                return
            except errors.Unavailable as failure:
                self._retrier.before_next(attempt, failure)
                attempt += 1

    def head(self, key: str) -> ObjectMeta | None:
        import obstore

        path = self._full(key)
        try:
            meta = self._retrier.run(key, lambda: obstore.head(self._client, path))
        except errors.NotFound:
            meta = None
        self.counters.add(heads=1)
        return self._meta(meta) if meta is not None else None

    def _open(self, path: str, position: int, etag: str | None) -> obstore.GetResult:
        import obstore

        options: obstore.GetOptions = {}
        if position:
            options["range"] = {"offset": position}
            options["if_match"] = etag  # the rest of another version would make a mix
        return obstore.get(self._client, path, options=options)

    @property
    def _client(self) -> Any:
        return self._connection.client

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _child_prefix(self, prefix: str) -> str:
        prefix = check_prefix(prefix)
        return f"{self._prefix}{prefix}/" if prefix else self._prefix

    def _meta(self, meta: obstore.ObjectMeta) -> ObjectMeta:
        return ObjectMeta(meta["path"][len(self._prefix) :], meta["size"], meta["last_modified"], _version(meta))


def client_options(options: StoreOptions) -> ClientConfig:
    """Settings of obstore's HTTP client. A big object may take long as long as it moves."""
    return {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=min(options.timeout_s, 10)),
        "read_timeout": timedelta(seconds=options.timeout_s),
        "timeout": timedelta(seconds=max(options.timeout_s * 20, 600)),
        "pool_max_idle_per_host": str(options.connections),
        "user_agent": "nightshift",
    }


NO_RETRIES: RetryConfig = {"max_retries": 0}  # ours are counted


_library_process: dict[str, int] = {}  # which process started the library's threads


def _version(meta: obstore.ObjectMeta) -> Version:
    return Version((meta["e_tag"] or "").strip('"'))


def open_url(url: str, credentials: Credentials | None, options: StoreOptions) -> HttpStore:  # noqa: ARG001
    """The store at a URL of this kind, see ``open_store``."""
    check_http(url)
    return HttpStore.open(url.rstrip("/"), options)


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

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, errors.StoreError]:
        self._refuse("delete", next(iter(keys), ""))

    def _refuse(self, verb: str, key: str) -> NoReturn:
        raise errors.Unsupported(
            f"{verb} {key!r}: {self.url} is read-only over HTTP; use the store's s3:// or file:// URL", key=key
        )
