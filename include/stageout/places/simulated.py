"""The simulated storage of the embedded FTS service, by its `mock:` URLs.

The service has these routes (JSON; URLs without a query, up to 1,000 in a call):

* `POST /simulated/stat {"urls": [..], "sources": true}`: `{"files": {url: {"size": 1, "checksum": "adler32:00620062"}
  | null}}`, or a list of `{"url", "size", "checksum"}`; null: it does not exist. With `sources`, a file that was never
  created exists as well: jobs of users leave theirs without a word.
* `POST /simulated/remove {"urls": [..]}`: any 2xx; what does not exist is no error.
* `GET /simulated/list?prefix=url`: `{"files": [{"url": .., "size": 1, "modified": "2026-11-23T12:00:00Z"}]}`, of all
  files below. Without `modified` a file never counts as old; the embedded service keeps no times.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, field_validator

from include.fts.client.credentials import Credential
from include.fts.client.transport import FtsCall, FtsTransport
from include.fts.errors import CredentialNeeded, FtsError, FtsForbidden
from include.fts.states import FailureReason
from include.settings.names import is_below
from include.settings.transfers.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED, PLACE_UNSUPPORTED
from include.stageout.places.facts import UNKNOWN_TIME, FileAnswer, FileFacts, ListedFile, failed
from include.stageout.places.options import PlaceOptions
from include.stageout.urls import SiteOperation, site_urls

T = TypeVar("T")

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
    modified: datetime = UNKNOWN_TIME


class _Listing(BaseModel):
    files: tuple[_Entry, ...]


class SimulatedStorage:
    """Its checksums cost nothing, so READ_BACK is answered as the others are."""

    def __init__(self, site: RemoteSite, credential: Credential | None, options: PlaceOptions) -> None:
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

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]:
        def answers(batch: Sequence[str], value: Any) -> dict[str, FileAnswer]:
            found = _Found.model_validate(value).files
            unasked = failed(errno.EPROTO, "the simulated storage does not know this file")
            return {url: _answer(found[url], checksum) if url in found else unasked for url in batch}

        sources = [url for url in urls if self._area is not None and is_below(url, self._area)]
        others = [url for url in urls if self._area is None or not is_below(url, self._area)]
        return {
            **self._batches("stat", sources, answers, sources=True),
            **self._batches("stat", others, answers),
        }

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return self._batches("remove", urls, lambda batch, _: dict.fromkeys(batch))

    def listed(self, url: str) -> Iterator[ListedFile]:
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
                found |= dict.fromkeys(batch, failed(_number(error), str(error)))
        return found


def _answer(found: _Facts | None, checksum: ChecksumMode) -> FileFacts | None:
    if found is None:
        return None
    return FileFacts(found.size, None if checksum is ChecksumMode.NONE else found.checksum)


def _number(error: FtsError) -> int:
    if isinstance(error, FtsForbidden | CredentialNeeded):
        return errno.EACCES
    return errno.EAGAIN if error.retryable else errno.EIO
