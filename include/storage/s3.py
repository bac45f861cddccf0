"""Objects in an S3 bucket: Amazon's, Ceph radosgw's or SeaweedFS's. Conditional writes are settled, never guessed."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from include.storage.errors import BucketMissing, Conflict, NotFound, StoreError, Unavailable, Unsupported
from include.storage.kinds import S3, Credentials, StoreOptions, Traits
from include.storage.objects import BATCH, BATCHES_AT_ONCE, Deletion, in_batches
from include.storage.open import check_http, split_s3_url
from include.storage.remote import NO_RETRIES, RemoteStore, ServerConnection, client_options
from include.storage.store import Counters, ObjectMeta, Unfinished, Version, check_key, check_prefix, headers_for

if TYPE_CHECKING:
    from obstore.store import S3Credential

PART_BYTES = 16 << 20
MULTIPART_FROM_BYTES = 2 * PART_BYTES


def endpoint_of(bucket: str, options: StoreOptions) -> str:
    """Return where requests go: with virtual-host addressing the bucket is part of the host name."""
    endpoint = (options.endpoint or f"https://s3.{options.region}.amazonaws.com").rstrip("/")
    if options.addressing == "virtual":
        scheme, _, host = endpoint.partition("://")
        return f"{scheme}://{bucket}.{host}"
    return endpoint


def open_url(url: str, credentials: Credentials | None, options: StoreOptions) -> S3Store:
    """The store at a URL of this kind, see ``open_store``."""
    bucket, prefix = split_s3_url(url)
    if options.endpoint is not None:
        check_http(options.endpoint, "endpoint")
    return S3Store.open(bucket, prefix, credentials, options)


class S3Connection(ServerConnection):
    """The way to one bucket, and what was learned about its server."""

    def __init__(
        self, bucket: str, credentials: Credentials | None, options: StoreOptions, counters: Counters | None = None
    ) -> None:
        self.bucket = bucket
        self.credentials = credentials
        self.traits = options.traits
        self.etag_quotes = options.traits.etag_quotes if options.traits else None
        super().__init__(f"s3://{bucket} at {endpoint_of(bucket, options)}", options, self._new_client, counters)
        self.bulk_delete = options.traits is None or options.traits.bulk_delete
        self._single_deletes: Any = None

    def with_traits(self, traits: Traits) -> S3Connection:
        """Another client for the same bucket; the counters go on."""
        return S3Connection(self.bucket, self.credentials, replace(self.options, traits=traits), self.counters)

    @property
    def single_deletes(self) -> Any:
        """A client that deletes by plain requests: some servers want rights on the whole bucket for those of many."""
        client = self.client  # refuses after a fork
        if self.traits is not None and not self.traits.bulk_delete:
            return client
        with self._lock:
            if self._single_deletes is None:
                self._single_deletes = self._new_client(bulk_delete=False)
        return self._single_deletes

    def _new_client(self, *, bulk_delete: bool = True) -> Any:
        from obstore.store import S3Store as Client

        options, credentials = self.options, self.credentials
        endpoint = endpoint_of(self.bucket, options)
        sent = client_options(options)
        if options.acl:
            sent["default_headers"] = {"x-amz-acl": options.acl}
        # Everything is given, since the library would fill gaps from AWS_* variables that are meant for other programs.
        settings: dict[str, Any] = {
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "region": options.region,
            "virtual_hosted_style_request": options.addressing == "virtual",
            "skip_signature": credentials is None,
            "request_payer": False,
            "unsigned_payload": not options.sign_payload,
            "disable_bulk_delete": not bulk_delete or (options.traits is not None and not options.traits.bulk_delete),
        }
        if credentials is not None:
            pair: S3Credential = {
                "access_key_id": credentials.access_key,
                "secret_access_key": credentials.secret_key,
                "expires_at": None,
            }
            settings["credential_provider"] = lambda: pair
        return Client(self.bucket, client_options=sent, retry_config=NO_RETRIES, **settings)


class S3Store(RemoteStore):
    """Objects of a bucket, below a prefix. Without credentials requests are not signed."""

    kind = S3
    _connection: S3Connection

    @classmethod
    def open(cls, bucket: str, prefix: str, credentials: Credentials | None, options: StoreOptions) -> S3Store:
        """No request is sent yet."""
        url = f"s3://{bucket}/{prefix}".rstrip("/")
        return cls(url, S3Connection(bucket, credentials, options), f"{prefix}/" if prefix else "")

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the same bucket."""
        way = self._connection
        return S3Store.open, (way.bucket, self._prefix.rstrip("/"), way.credentials, way.options)

    @property
    def traits(self) -> Traits | None:
        return self._connection.traits

    def unfinished(self) -> Iterator[Unfinished]:
        """Multipart uploads, with what they are of. Sizes would cost a request each."""
        from include.storage.buckets import multipart_uploads

        if self._connection.credentials is None:
            return iter(())
        return multipart_uploads(
            self._connection.bucket, self._prefix, self._connection.credentials, self._connection.options
        )

    @property
    def etag_quotes(self) -> bool | None:
        """Tell whether the server wants ETags quoted in If-Match; None as long as no conditional replace succeeded."""
        return self._connection.etag_quotes

    def with_traits(self, traits: Traits) -> S3Store:
        return S3Store(self.url, self._connection.with_traits(traits), self._prefix)

    def child(self, prefix: str) -> S3Store:
        below = self._child_prefix(prefix)
        if below == self._prefix:
            return self
        return S3Store(f"{self.url}/{prefix.rstrip('/')}", self._connection, below)

    def put(self, key: str, data: bytes) -> None:
        path = self._full(key)
        self._retrier.run(key, lambda: self._send(path, data, "overwrite"))
        self.counters.add(puts=1, bytes_put=len(data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._create(key, data) is not None

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        if expected is None:
            created = self._create(key, data)
            if created is None:
                raise Conflict(f"{key}: expected to be absent from {self.url}, but it is there; read it again", key=key)
            return created
        traits = self._connection.traits
        if traits is not None and not traits.replace:
            if not self._connection.options.single_writer:
                raise Unsupported(
                    f"{key}: {self.url} ignores conditions on a replacement, so two writers could undo each other; "
                    "use a store that keeps them, or declare that there is a single writer",
                    key=key,
                )
            return self._replace_unguarded(key, data, expected)
        return self._replace_if_match(key, data, expected)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        import obstore

        folder = self._prefix + check_prefix(prefix)
        last: str | None = None
        attempt = 0
        while True:
            try:
                pages = iter(
                    self._retrier.once(
                        prefix,
                        lambda: obstore.list(self._client, folder or None, offset=last, chunk_size=1000),  # noqa: B023
                    )
                )
                while (page := self._retrier.once(prefix, lambda: next(pages, None))) is not None:  # noqa: B023
                    attempt = 0
                    self.counters.add(lists=1)
                    for meta in page:
                        last = meta["path"]
                        yield self._meta(meta)
                return
            except Unavailable as failure:
                self._retrier.before_next(attempt, failure)
                attempt += 1

    def delete(self, keys: Iterable[str]) -> int:
        unique = dict.fromkeys(check_key(key) for key in keys)
        deque(in_batches(unique, self._delete_batch, size=BATCH, at_once=BATCHES_AT_ONCE), maxlen=0)
        return len(unique)

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        deletion = Deletion(self._delete_batch, self._connection.bulk_delete)
        refused = deletion.run(keys)
        if not deletion.bulk:  # for all threads, and for those that found out nothing
            self._connection.bulk_delete = False
        return refused

    def remove_unfinished(self, older_than: datetime) -> Sequence[Unfinished]:
        from include.storage.buckets import abort_multipart_uploads

        connection = self._connection
        if connection.credentials is None:
            return []
        return abort_multipart_uploads(
            connection.bucket, self._prefix, connection.credentials, connection.options, older_than
        )

    def versioning(self) -> bool:
        from include.storage.buckets import keeps_versions

        connection = self._connection
        if connection.credentials is None:
            return False
        return keeps_versions(connection.bucket, connection.credentials, connection.options)

    def _delete_batch(self, keys: Sequence[str]) -> None:
        import obstore

        paths = [self._prefix + key for key in keys]
        client = self._connection.single_deletes if len(keys) == 1 else self._client
        self._retrier.run(keys[0], lambda: obstore.delete(client, paths))
        self.counters.add(deletes=len(keys))

    def _create(self, key: str, data: bytes) -> Version | None:
        """Put if absent; None if it was there."""
        traits = self._connection.traits
        if traits is not None and not traits.put_if_absent:
            raise Unsupported(f"{key}: {self.url} ignores If-None-Match; use put() or another store", key=key)
        path = self._full(key)
        unclear = False
        for attempt in itertools.count():
            try:
                version = self._retrier.once(key, lambda: self._send(path, data, "create"))
            except (Conflict, Unavailable) as failure:
                # Only a plain "it is there" to our first attempt is clear; anything else may hide a success of ours.
                if isinstance(failure, Conflict) and not unclear:
                    return None
                unclear = True
                current = self._read_back(key)
                if current is not None:
                    return current[1] if current[0] == data else None
                self._retrier.before_next(attempt, _as_passing(failure))
            else:
                self.counters.add(puts=1, bytes_put=len(data))
                return version
        raise AssertionError("unreachable")

    def _replace_if_match(self, key: str, data: bytes, expected: Version) -> Version:
        path = self._full(key)
        quotes = self._connection.etag_quotes is not False
        other_spelling_tried = self._connection.etag_quotes is not None
        attempt = 0
        while True:
            etag = f'"{expected.etag}"' if quotes else expected.etag
            try:
                version = self._retrier.once(key, lambda: self._send(path, data, etag))  # noqa: B023 - runs at once
            except (Conflict, NotFound, Unavailable) as failure:
                # The refusal proves nothing. An earlier attempt of ours may have been stored and its reply lost, and
                # some servers compare the ETag without its quotes, so that they refuse the right one. The object
                # decides.
                current = self._read_back(key)
                if current is None:
                    if isinstance(failure, BucketMissing):
                        raise
                    raise Conflict(f"{key}: expected in {self.url}, but it is gone; read it again", key=key) from None
                if current[0] == data:
                    return current[1]
                if current[1] != expected:
                    raise Conflict(f"{key}: another writer replaced it in {self.url}; read it again", key=key) from None
                # It is what was expected, and was refused all the same: the spelling, which is learned once for a
                # server.
                if isinstance(failure, Conflict) and not other_spelling_tried:
                    quotes, other_spelling_tried = not quotes, True
                    continue
                self._retrier.before_next(attempt, _as_passing(failure))
                attempt += 1
            else:
                self._connection.etag_quotes = quotes
                self.counters.add(puts=1, bytes_put=len(data))
                return version

    def _replace_unguarded(self, key: str, data: bytes, expected: Version) -> Version:
        current = self._read_back(key)
        if current is None or current[1] != expected:
            raise Conflict(f"{key}: it changed in {self.url} although a single writer was declared", key=key)
        path = self._full(key)
        version = self._retrier.run(key, lambda: self._send(path, data, "overwrite"))
        self.counters.add(puts=1, bytes_put=len(data))
        return version

    def _read_back(self, key: str) -> tuple[bytes, Version] | None:
        try:
            return self.get_versioned(key)
        except BucketMissing:
            raise
        except NotFound:
            return None

    def _send(self, path: str, data: bytes, mode: Literal["create", "overwrite"] | str) -> Version:
        """Return one PUT; any other ``mode`` is the ETag, spelled as it is to be sent."""
        import obstore

        result = obstore.put(
            self._client,
            path,
            data,
            attributes=headers_for(path),
            mode=mode if mode in ("create", "overwrite") else {"e_tag": mode},
            use_multipart=len(data) >= MULTIPART_FROM_BYTES and mode == "overwrite",
            chunk_size=PART_BYTES,
            max_concurrency=4,
        )
        return Version((result["e_tag"] or "").strip('"'))


def _as_passing(failure: Conflict | NotFound | Unavailable) -> Unavailable:
    """A refusal whose stated reason did not hold when we looked: the store is worth another try."""
    if isinstance(failure, Unavailable):
        return failure
    return Unavailable(f"{failure}; but it is as expected", key=failure.key, cause="condition")
