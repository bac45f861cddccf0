"""The storage of a site, opened with a credential: over HTTP, XRootD, S3, a folder or simulated."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from include.fts.errors import CredentialNeeded, FtsError, FtsForbidden
from include.fts.states import FailureReason
from include.fts.transport import Credential, FtsCall, FtsTransport
from include.settings.sites import ChecksumMode, RemoteSite
from include.settings.text_types import is_below, logical_name_fault
from include.stageout.errors import PLACE_UNLISTED, PLACE_UNSUPPORTED, StageoutError
from include.stageout.files import SiteOperation, site_urls
from include.stageout.places import facts
from include.stageout.places.dav import DavStorage
from include.stageout.places.xrootd import XrootdStorage
from include.storage.errors import BadKey, BucketMissing, Forbidden, NotFound, StoreError, Unavailable
from include.storage.open import split_s3_url

_AT_ONCE = 1000


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)
    size: int = Field(ge=0)
    checksum: str | None = Field(default=None, pattern=r"^(adler32|crc32c):[0-9a-f]{8}$")


class _Found(BaseModel):
    files: dict[str, _Facts | None]

    @field_validator("files", mode="before")
    @classmethod
    def _by_url(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        entries = [entry for entry in value if isinstance(entry, dict) and isinstance(entry.get("url"), str)]
        return {entry.pop("url"): entry if entry.get("size") is not None else None for entry in entries}


class _Entry(BaseModel):
    url: str
    size: int = Field(ge=0)
    modified: datetime = facts.UNKNOWN_TIME


class _Listing(BaseModel):
    files: tuple[_Entry, ...]


class SimulatedStorage:
    """Its checksums cost nothing, so READ_BACK is answered as the others are."""

    def __init__(self, site: RemoteSite, credential: Credential | None, options: facts.PlaceOptions) -> None:
        if options.fts_url is None:
            raise PLACE_UNSUPPORTED(f"site {site.name}", "its mock URLs need an embedded FTS service, and none is set")
        self._transport = FtsTransport(
            options.fts_url, credential, authorities=options.authorities, timeout_s=options.timeout_s, retries=2
        )
        area = site.temporary
        below = [rule for rule in site.read if area and rule.protocol == "mock" and is_below(area, rule.prefix)]
        self._area = site_urls(site, SiteOperation.READ, area)["mock"] if area and below else None

    def close(self) -> None:
        self._transport.close()

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, facts.FileAnswer]:
        def answers(batch: Sequence[str], value: Any) -> dict[str, facts.FileAnswer]:
            found = _Found.model_validate(value).files
            unasked = facts.failed(errno.EPROTO, "the simulated storage does not know this file")
            return {url: _answer(found[url], checksum) if url in found else unasked for url in batch}

        sources = [url for url in urls if self._area is not None and is_below(url, self._area)]
        others = [url for url in urls if self._area is None or not is_below(url, self._area)]
        return {**self._batches("stat", sources, answers, sources=True), **self._batches("stat", others, answers)}

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return self._batches("remove", urls, lambda batch, _: dict.fromkeys(batch))

    def read(self, url: str, offset: int, length: int) -> bytes | FailureReason:  # noqa: ARG002
        return facts.unsupported("read")

    def write(self, url: str, data: bytes) -> FailureReason | None:  # noqa: ARG002
        return facts.unsupported("write")

    def copy(self, source: str, url: str) -> FailureReason | None:  # noqa: ARG002
        return facts.unsupported("copy")

    def listed(self, url: str) -> Iterator[facts.ListedFile]:
        call = FtsCall("GET", f"/simulated/list?prefix={quote(url, safe='')}", "simulated list")
        try:
            listing: _Listing = self._transport.value(call, _Listing.model_validate)
        except FtsError as error:
            raise PLACE_UNLISTED(url, str(error)) from error
        below = f"{url.rstrip('/')}/"
        for entry in listing.files:
            if entry.url.startswith(below):
                modified = entry.modified if entry.modified.tzinfo else entry.modified.replace(tzinfo=UTC)
                yield entry.url.removeprefix(below), entry.size, modified

    def _batches(
        self,
        route: str,
        urls: Sequence[str],
        parse: Callable[[Sequence[str], Any], Mapping[str, T]],
        *,
        sources: bool = False,
    ) -> dict[str, T | FailureReason]:
        found: dict[str, T | FailureReason] = {}
        different = list(dict.fromkeys(urls))
        for start in range(0, len(different), _AT_ONCE):
            batch = different[start : start + _AT_ONCE]
            body = json.dumps({"urls": batch, **({"sources": True} if sources else {})}).encode()
            call = FtsCall("POST", f"/simulated/{route}", f"simulated {route} of {len(batch)} files", body=body)
            try:
                found |= self._transport.value(call, lambda value: parse(batch, value))  # noqa: B023 - runs at once
            except FtsError as error:
                found |= dict.fromkeys(batch, facts.failed(_number(error), str(error)))
        return found


def _answer(found: _Facts | None, checksum: ChecksumMode) -> facts.FileFacts | None:
    if found is None:
        return None
    return facts.FileFacts(found.size, None if checksum is ChecksumMode.NONE else found.checksum)


def _number(error: FtsError) -> int:
    if isinstance(error, FtsForbidden | CredentialNeeded):
        return errno.EACCES
    return errno.EAGAIN if error.retryable else errno.EIO


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class FolderStorage:
    """The folders of a site. A folder has no identities, so the credential is not used; and it reports no checksum."""

    def __init__(self, site: RemoteSite, _: Credential | None, options: facts.PlaceOptions) -> None:
        self._site, self._options = site, options

    def close(self) -> None:
        """Nothing is open between two calls."""

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, facts.FileAnswer]:
        reads = checksum is ChecksumMode.READ_BACK
        return facts.at_once(
            lambda url: self._at(url, lambda parent, name: _facts(parent, name, reads)), urls, self._options
        )

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return facts.at_once(lambda url: self._at(url, _unlinked), urls, self._options)

    def read(self, url: str, offset: int, length: int) -> bytes | FailureReason:
        def part(parent: int, name: str) -> bytes | FailureReason:
            with _opened(parent, name, os.O_RDONLY) as file:
                return facts.whole(os.pread(file.fileno(), length, offset), length)

        data = self._at(url, part)
        return facts.failed(errno.ENOENT, "it does not exist") if data is None else data

    def write(self, url: str, data: bytes) -> FailureReason | None:
        def written(parent: int, name: str) -> bool:
            with _opened(parent, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                file.write(data)
            return True

        result = self._at(url, written)
        if result is None:
            return facts.failed(errno.ENOENT, "its folder does not exist")
        return result if isinstance(result, FailureReason) else None

    def copy(self, source: str, url: str) -> FailureReason | None:  # noqa: ARG002
        return facts.unsupported("copy")

    def listed(self, url: str) -> Iterator[facts.ListedFile]:
        path = urlsplit(url).path

        def refuse(error: OSError) -> None:
            # removed since the folder above it was listed
            if error.errno not in _ABSENT:
                raise PLACE_UNLISTED(url, error.strerror or "it cannot be read") from None

        try:
            with self._folder(path) as top:
                for folder, _, names, opened in os.fwalk(".", onerror=refuse, follow_symlinks=False, dir_fd=top):
                    yield from _files(opened, PurePosixPath(folder), names)
        except OSError as error:
            refuse(error)

    def _at(self, url: str, work: Callable[[int, str], T]) -> T | FailureReason | None:
        """The work on an open folder and the name of the file in it; None for what does not exist."""
        path = PurePosixPath(urlsplit(url).path)
        try:
            with self._folder(str(path.parent)) as parent:
                return work(parent, path.name)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            return facts.failed(error.errno or errno.EIO, error.strerror or "it failed")

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """An open folder of the site, reached without links below the site's own folder."""
        roots = [root for root in self._site.folders if PurePosixPath(path).is_relative_to(root)]
        if not roots:
            raise OSError(errno.EACCES, f"{path} is outside of the folders of the site")
        root = max(roots, key=lambda folder: len(folder.parts))
        try:
            opened = os.open(root, _FOLDER)
        except FileNotFoundError:
            # not ENOENT, by which every file of a storage that is not mounted would be gone
            raise OSError(errno.EIO, f"the folder {root} of the site does not exist") from None
        try:
            for part in PurePosixPath(path).relative_to(root).parts:
                below = _below(part, opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)


def _below(part: str, parent: int) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, f"{part} is a link") from None
        raise


def _facts(parent: int, name: str, reads: bool) -> facts.FileFacts | FailureReason:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        return facts.failed(errno.EISDIR, "it is not a file, but a folder, a link or a device")
    if not reads:
        return facts.FileFacts(found.st_size, None, datetime.fromtimestamp(found.st_mtime, UTC))
    with _opened(parent, name, os.O_RDONLY) as file:
        return facts.read_back(iter(lambda: file.read(facts.BLOCK), b""), found.st_size)


def _opened(parent: int, name: str, flags: int) -> io.FileIO:
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent)
    return io.FileIO(descriptor, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "wb")


def _unlinked(parent: int, name: str) -> FailureReason | None:
    if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return facts.failed(errno.EISDIR, "it is not a file, but a folder, a link or a device")
    os.unlink(name, dir_fd=parent)
    return None


def _files(opened: int, folder: PurePosixPath, names: Sequence[str]) -> Iterator[facts.ListedFile]:
    for name in names:
        try:
            found = os.stat(name, dir_fd=opened, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield str(folder / name), found.st_size, datetime.fromtimestamp(found.st_mtime, UTC)


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

    def __init__(self, site: RemoteSite, _: Credential | None, options: facts.PlaceOptions) -> None:
        if options.store is None:
            what = "its s3 URLs need a store of this deployment, and `store` of the site names none"
            raise PLACE_UNSUPPORTED(f"site {site.name}", what)
        self._store, self._options = options.store, options
        bucket, prefix = split_s3_url(self._store.url)
        self._bucket, self._prefix = bucket, f"/{prefix}/" if prefix else "/"

    def close(self) -> None:
        """The store is its opener's to close."""

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, facts.FileAnswer]:
        return facts.at_once(lambda url: self._look(url, reads=checksum is ChecksumMode.READ_BACK), urls, self._options)

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        keys = {url: self._key(url) for url in urls}
        try:
            refused = self._store.delete_each([key for key in keys.values() if isinstance(key, str)])
        except StoreError as error:
            return dict.fromkeys(urls, _failure(error))
        failures = {key: _failure(error) for key, error in refused.items()}
        return {url: failures.get(key) if isinstance(key, str) else key for url, key in keys.items()}

    def read(self, url: str, offset: int, length: int) -> bytes | FailureReason:
        return self._done(url, lambda key: facts.whole(self._store.get_range(key, offset, length), length))

    def write(self, url: str, data: bytes) -> FailureReason | None:
        return self._done(url, lambda key: self._store.put(key, data))

    def copy(self, source: str, url: str) -> FailureReason | None:  # noqa: ARG002
        return facts.unsupported("copy")

    def _done(self, url: str, work: Callable[[str], T]) -> T | FailureReason:
        key = self._key(url)
        if isinstance(key, FailureReason):
            return key
        try:
            return work(key)
        except StoreError as error:
            return _failure(error)

    def listed(self, url: str) -> Iterator[facts.ListedFile]:
        key = self._key(url)
        if isinstance(key, FailureReason):
            raise PLACE_UNLISTED(url, key.text)
        try:
            for found in self._store.list(key):
                yield found.key.removeprefix(f"{key}/"), found.size, found.modified
        except StoreError as error:
            raise PLACE_UNLISTED(url, str(error)) from error

    def _look(self, url: str, *, reads: bool) -> facts.FileAnswer:
        key = self._key(url)
        if isinstance(key, FailureReason):
            return key
        try:
            found = self._store.head(key)
            if found is None:
                return None
            if reads:
                return facts.read_back(self._store.stream(key), found.size)
            return facts.FileFacts(found.size, None, found.modified)
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
            return facts.failed(
                errno.EOPNOTSUPP, f"{self._store.url} is not the bucket of its URL. Hint: correct the rule."
            )
        inside = "/" + path.removeprefix(in_path).lstrip("/")
        if not inside.startswith(self._prefix) or inside == self._prefix:
            return facts.failed(errno.EOPNOTSUPP, f"it is not below {self._store.url}. Hint: correct the site's rules.")
        return inside.removeprefix(self._prefix)


def _failure(error: StoreError) -> FailureReason:
    return facts.failed(next(number for kind, number in _FAILURES if isinstance(error, kind)), str(error)[:500])


T = TypeVar("T")

STORAGES: Mapping[str, Callable[[RemoteSite, Credential | None, facts.PlaceOptions], facts.UrlStorage]] = {
    "http": DavStorage,
    "file": FolderStorage,
    "s3": ObjectStorage,
    "mock": SimulatedStorage,
    "root": XrootdStorage,
}
"""What speaks a protocol. Others, as gsiftp, can only be used by FTS."""


def open_place(
    site: RemoteSite, credential: Credential | None = None, options: facts.PlaceOptions | None = None
) -> facts.SitePlace:
    """The storage of a site; nothing is sent yet.

    `site`: its `read` rules say how files are checked, its `write` rules how they are removed. `credential`: the
    identity of the user; None: anonymous, or the key of the site's store. `options`: what the deployment adds. Raises
    StageoutError: PLACE_UNSUPPORTED if none of the site's `read` and `write` rules has a protocol that is spoken here.
    """
    protocols = [rule.protocol for rule in (*site.read, *site.write)]
    if not STORAGES.keys() & set(protocols):
        has = f"its `read` and `write` rules have {', '.join(dict.fromkeys(protocols)) or 'no URLs'}"
        raise PLACE_UNSUPPORTED(f"site {site.name}", f"{has}; files are checked by {', '.join(STORAGES)}")
    return _RoutedPlace(site, credential, options or facts.PlaceOptions())


class _RoutedPlace:
    """Gives each name to the storage of the first protocol of its rules that is spoken here."""

    def __init__(self, site: RemoteSite, credential: Credential | None, options: facts.PlaceOptions) -> None:
        self._site, self._credential, self._options = site, credential, options
        self._storages: dict[str, facts.UrlStorage] = {}
        self._lock = threading.Lock()

    def look(self, names: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, facts.FileAnswer]:
        return self._each(names, SiteOperation.READ, lambda storage, urls: storage.look(urls, checksum=checksum))

    def remove(self, names: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return self._each(names, SiteOperation.WRITE, lambda storage, urls: storage.remove(urls))

    def read(self, name: str, offset: int, length: int) -> bytes | FailureReason:
        return self._one(name, SiteOperation.READ, lambda storage, url: storage.read(url, offset, length))

    def write(self, name: str, data: bytes) -> FailureReason | None:
        return self._one(name, SiteOperation.WRITE, lambda storage, url: storage.write(url, data))

    def copy(self, source: str, name: str) -> FailureReason | None:
        route = self._route(source, SiteOperation.THIRD_PARTY)
        if isinstance(route, FailureReason):
            return route
        return self._one(name, SiteOperation.THIRD_PARTY, lambda storage, url: storage.copy(route[1], url))

    def _one(
        self, name: str, operation: SiteOperation, work: Callable[[facts.UrlStorage, str], T | FailureReason]
    ) -> T | FailureReason:
        route = self._route(name, operation)
        return route if isinstance(route, FailureReason) else work(self._storage(route[0]), route[1])

    def listed(self, prefix: str) -> Iterator[facts.ListedFile]:
        route = self._route(prefix, SiteOperation.READ)
        if isinstance(route, FailureReason):
            raise PLACE_UNLISTED(f"{prefix} at site {self._site.name}", route.text)
        protocol, url = route
        for relative, size, modified in self._storage(protocol).listed(url):
            name = f"{prefix.rstrip('/')}/{relative}"
            # not a name whose own URL is another one: what is done with it later would hit another file
            if logical_name_fault(name) is None and self._is_at(name, protocol, url):
                yield name, size, modified

    def close(self) -> None:
        with self._lock:
            for storage in self._storages.values():
                storage.close()
            self._storages.clear()

    def _each(
        self,
        names: Sequence[str],
        operation: SiteOperation,
        work: Callable[[facts.UrlStorage, Sequence[str]], Mapping[str, T | FailureReason | None]],
    ) -> dict[str, T | FailureReason | None]:
        found: dict[str, T | FailureReason | None] = {}
        wanted: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for name in names:
            route = self._route(name, operation)
            if isinstance(route, FailureReason):
                found[name] = route
            else:
                wanted[route[0]][name] = route[1]
        for protocol, urls in wanted.items():
            answers = work(self._storage(protocol), list(urls.values()))
            found |= {name: answers[url] for name, url in urls.items()}
        return found

    def _route(self, name: str, operation: SiteOperation) -> tuple[str, str] | FailureReason:
        """Protocol and URL of a name."""
        try:
            urls = site_urls(self._site, operation, name)
        except StageoutError as error:
            return facts.failed(errno.EOPNOTSUPP, str(error))
        for protocol, url in urls.items():
            if protocol in STORAGES:
                return protocol, url
        what = f"site {self._site.name} has only {', '.join(urls)} to {operation.value} {name}"
        return facts.failed(errno.EOPNOTSUPP, f"{what}. Hint: {PLACE_UNSUPPORTED.hint}.")

    def _is_at(self, name: str, protocol: str, folder: str) -> bool:
        route = self._route(name, SiteOperation.READ)
        return not isinstance(route, FailureReason) and route[0] == protocol and is_below(route[1], folder.rstrip("/"))

    def _storage(self, protocol: str) -> facts.UrlStorage:
        with self._lock:
            if protocol not in self._storages:
                self._storages[protocol] = STORAGES[protocol](self._site, self._credential, self._options)
            return self._storages[protocol]
