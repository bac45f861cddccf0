"""The storage of a site that is an object store of this deployment (`store` of the site), by its `s3:` URLs."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from include.fts.client.credentials import Credential
from include.fts.states import FailureReason
from include.settings.transfers.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED, PLACE_UNSUPPORTED
from include.stageout.places.facts import FileAnswer, FileFacts, ListedFile, at_once, failed, read_back
from include.stageout.places.options import PlaceOptions
from include.storage.errors import BadKey, BucketMissing, Forbidden, NotFound, StoreError, Unavailable
from include.storage.urls import split_s3_url

_FAILURES: tuple[tuple[type[StoreError], int], ...] = (
    (Forbidden, errno.EACCES),
    (Unavailable, errno.EAGAIN),
    (BadKey, errno.EINVAL),
    (StoreError, errno.EIO),
)


class ObjectStorage:
    """Objects have no checksum of ours: a site with object storage is verified by reading back, or by size.

    The key is that of the deployment's store, whatever the credential of the user.
    """

    def __init__(self, site: RemoteSite, _: Credential | None, options: PlaceOptions) -> None:
        if options.store is None:
            what = "its s3 URLs need a store of this deployment, and `store` of the site names none"
            raise PLACE_UNSUPPORTED(f"site {site.name}", what)
        self._store, self._options = options.store, options
        bucket, prefix = split_s3_url(self._store.url)
        self._bucket, self._prefix = bucket, f"/{prefix}/" if prefix else "/"

    def close(self) -> None:
        """The store is its opener's to close."""

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]:
        return at_once(lambda url: self._look(url, reads=checksum is ChecksumMode.READ_BACK), urls, self._options)

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        keys = {url: self._key(url) for url in urls}
        try:
            refused = self._store.delete_each([key for key in keys.values() if isinstance(key, str)])
        except StoreError as error:
            return dict.fromkeys(urls, _failure(error))
        failures = {key: _failure(error) for key, error in refused.items()}
        return {url: failures.get(key) if isinstance(key, str) else key for url, key in keys.items()}

    def listed(self, url: str) -> Iterator[ListedFile]:
        key = self._key(url)
        if isinstance(key, FailureReason):
            raise PLACE_UNLISTED(url, key.text)
        try:
            for found in self._store.list(key):
                yield found.key.removeprefix(f"{key}/"), found.size, found.modified
        except StoreError as error:
            raise PLACE_UNLISTED(url, str(error)) from error

    def _look(self, url: str, *, reads: bool) -> FileAnswer:
        key = self._key(url)
        if isinstance(key, FailureReason):
            return key
        try:
            found = self._store.head(key)
            if found is None:
                return None
            if reads:
                return read_back(self._store.stream(key), found.size)
            return FileFacts(found.size, None, found.modified)
        except BucketMissing as error:
            return _failure(error)
        except NotFound:
            return None
        except StoreError as error:
            return _failure(error)

    def _key(self, url: str) -> str | FailureReason:
        """The key in the store. The bucket is the first part of the URL's path or of its host, never of both."""
        parts = urlsplit(url)
        path, in_path = unquote(parts.path), f"/{self._bucket}/"
        if path.startswith(in_path) is (parts.hostname or "").startswith(f"{self._bucket}."):
            return failed(errno.EOPNOTSUPP, f"{self._store.url} is not the bucket of its URL. Hint: correct the rule.")
        inside = "/" + path.removeprefix(in_path).lstrip("/")
        if not inside.startswith(self._prefix) or inside == self._prefix:
            return failed(errno.EOPNOTSUPP, f"it is not below {self._store.url}. Hint: correct the site's rules.")
        return inside.removeprefix(self._prefix)


def _failure(error: StoreError) -> FailureReason:
    return failed(next(number for kind, number in _FAILURES if isinstance(error, kind)), str(error)[:500])
