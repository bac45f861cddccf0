"""The storage of a site, opened with a credential: each of its URLs is reached by the protocol that it has."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from include.fts.client.credentials import Credential
from include.fts.states import FailureReason
from include.settings.names import is_below, logical_name_fault
from include.settings.transfers.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED, PLACE_UNSUPPORTED, StageoutError
from include.stageout.places.dav import DavStorage
from include.stageout.places.facts import FileAnswer, ListedFile, SitePlace, UrlStorage, failed
from include.stageout.places.folder import FolderStorage
from include.stageout.places.objects import ObjectStorage
from include.stageout.places.options import PlaceOptions
from include.stageout.places.simulated import SimulatedStorage
from include.stageout.places.xrootd import XrootdStorage
from include.stageout.urls import SiteOperation, site_urls

T = TypeVar("T")

STORAGES: Mapping[str, Callable[[RemoteSite, Credential | None, PlaceOptions], UrlStorage]] = {
    "http": DavStorage,
    "file": FolderStorage,
    "s3": ObjectStorage,
    "mock": SimulatedStorage,
    "root": XrootdStorage,
}
"""What speaks a protocol. Others, as gsiftp, can only be used by FTS."""


def open_place(
    site: RemoteSite, credential: Credential | None = None, options: PlaceOptions | None = None
) -> SitePlace:
    """The storage of a site; nothing is sent yet.

    Args:
        site: Its `read` rules say how files are checked, its `write` rules how they are removed.
        credential: The identity of the user; None: anonymous, or the key of the site's store.
        options: What the deployment adds.

    Raises:
        StageoutError: PLACE_UNSUPPORTED if none of the site's `read` and `write` rules has a protocol that is spoken
            here.
    """
    protocols = [rule.protocol for rule in (*site.read, *site.write)]
    if not STORAGES.keys() & set(protocols):
        has = f"its `read` and `write` rules have {', '.join(dict.fromkeys(protocols)) or 'no URLs'}"
        raise PLACE_UNSUPPORTED(f"site {site.name}", f"{has}; files are checked by {', '.join(STORAGES)}")
    return _RoutedPlace(site, credential, options or PlaceOptions())


class _RoutedPlace:
    """Gives each name to the storage of the first protocol of its rules that is spoken here."""

    def __init__(self, site: RemoteSite, credential: Credential | None, options: PlaceOptions) -> None:
        self._site, self._credential, self._options = site, credential, options
        self._storages: dict[str, UrlStorage] = {}
        self._lock = threading.Lock()

    def look(self, names: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]:
        return self._each(names, SiteOperation.READ, lambda storage, urls: storage.look(urls, checksum=checksum))

    def remove(self, names: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return self._each(names, SiteOperation.WRITE, lambda storage, urls: storage.remove(urls))

    def listed(self, prefix: str) -> Iterator[ListedFile]:
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
        work: Callable[[UrlStorage, Sequence[str]], Mapping[str, T | FailureReason | None]],
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
            return failed(errno.EOPNOTSUPP, str(error))
        for protocol, url in urls.items():
            if protocol in STORAGES:
                return protocol, url
        what = f"site {self._site.name} has only {', '.join(urls)} to {operation.value} {name}"
        return failed(errno.EOPNOTSUPP, f"{what}. Hint: {PLACE_UNSUPPORTED.hint}.")

    def _is_at(self, name: str, protocol: str, folder: str) -> bool:
        route = self._route(name, SiteOperation.READ)
        return not isinstance(route, FailureReason) and route[0] == protocol and is_below(route[1], folder.rstrip("/"))

    def _storage(self, protocol: str) -> UrlStorage:
        with self._lock:
            if protocol not in self._storages:
                self._storages[protocol] = STORAGES[protocol](self._site, self._credential, self._options)
            return self._storages[protocol]
