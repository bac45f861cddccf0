"""A replica of a file, and that at an HTTP server: single attempts, without repetition.

Replies are hostile: their redirections, sizes and places are checked, and none of their text is repeated.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import requests
from requests import Response
from urllib3.exceptions import HTTPError, ReadTimeoutError

from include.http_calls import failure_of, may_carry_token, pooled_session
from include.reading.errors import FailureKind, ReplicaFailure
from include.reading.ranges import ContentRange, MultipartReply, Range, RangeBuffers, empty_total, header_of

_BLOCK = 256 << 10  # smaller ones are more calls; memory of larger ones goes back to the kernel each time
_REDIRECTIONS = 5
_CONNECTIONS = 8
_PARTIAL, _WHOLE, _UNSATISFIABLE = 206, 200, 416
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MISSING, _REFUSED, _BUSY = frozenset({404, 410}), frozenset({401, 403}), frozenset({408, 425, 429})
_LONGEST_WAIT_S = 60.0
_MERGED = 64 << 10
"""Bytes between ranges that are read with them where a server merges its parts."""
Token = Callable[[], str | None]
"""The bearer token of now; asked before each request, since tokens end."""


@dataclass(slots=True)
class ReadingCounts:
    """Figures of the reading of a file: what goes into the line that each reader leaves."""

    requests: int = 0
    received: int = 0
    """Bytes of content that arrived."""
    retries: int = 0
    waited_s: float = 0.0
    """Waiting for replies, and between attempts."""
    sites: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    """Failed requests by site and kind, as `T2_US_Caltech cut`."""


class DistantReplica(ABC):
    """A file at a URL. Every method is one attempt, and raises ReplicaFailure.

    ``site``: the name by which its failures are known. ``timeout_s``: for a connection, and between two bytes.
    """

    def __init__(self, url: str, site: str, *, timeout_s: float, counts: ReadingCounts) -> None:
        self.site, self._url, self._timeout_s, self._counts = site, url, timeout_s, counts
        self.size: int | None = None
        self.digest: str | None = None

    @abstractmethod
    def open(self) -> int:
        """Learn the size, the validator and the checksum; returns the size."""

    @abstractmethod
    def stream(self, offset: int, length: int) -> Iterator[bytes]:
        """The bytes of one range, as they arrive."""

    @abstractmethod
    def fill(self, buffers: RangeBuffers, ranges: Sequence[Range]) -> None:
        """Read ranges into buffers by one request: all, or the first ones where the server takes no more.

        What has arrived stays in the buffers whatever happens then.
        """

    def fill_one(self, buffers: RangeBuffers, asked: Range) -> None:
        """Read one range into buffers."""
        offset, length = asked
        for block in self.stream(offset, length):
            buffers.put(offset, block)
            offset += len(block)

    @abstractmethod
    def close(self) -> None:
        """End its connections."""


class HttpReplica(DistantReplica):
    """A file at a URL of the scheme http or https."""

    def __init__(
        self, url: str, site: str, *, timeout_s: float, counts: ReadingCounts, token: Token = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(url, site, timeout_s=timeout_s, counts=counts)
        self._token = token
        self._session = pooled_session(_CONNECTIONS)
        self._at = url
        self._validator: str | None = None
        self._seen: tuple[str | None, str | None] | None = None
        self._takes_many = True

    def open(self) -> int:
        """Ask for the first byte."""
        self._at = self._url
        headers = {"Range": "bytes=0-0", "Want-Digest": "adler32"}
        with self._reply(headers) as reply:
            if reply.status_code == _UNSATISFIABLE:
                total = empty_total(reply.headers.get("Content-Range", ""))
                if total != 0:
                    raise ReplicaFailure(FailureKind.WRONG, "it refuses a range of its first byte")
            elif reply.status_code == _PARTIAL:
                total = self._place(reply).total
            else:
                self._require_data(reply)
                length = reply.headers.get("Content-Length", "")
                total = int(length) if length.isascii() and length.isdecimal() else None
            if total is None:
                raise ReplicaFailure(FailureKind.WRONG, "it does not say how large the file is")
            self._require_same(reply)
            if reply.status_code == _PARTIAL:
                list(self._blocks(reply, 1))  # a body that is read leaves the connection open
            if self.size not in (None, total):
                raise ReplicaFailure(FailureKind.CHANGED, f"it has {total} bytes, and had {self.size}")
            self.size = total
            self.digest = adler32_of(reply.headers.get("Digest", ""))
        return total

    def stream(self, offset: int, length: int) -> Iterator[bytes]:
        with self._reply({"Range": header_of([(offset, length)])}) as reply:
            if reply.status_code == _WHOLE and offset == 0 and length == self.size:
                self._require_same(reply)
                self._require_data(reply)  # no ranges here, but all of the file is what is asked for
            else:
                self._require_partial(reply)
                place = self._place(reply)
                announced = reply.headers.get("Content-Length", str(place.length))
                if place.offset != offset or place.length > length or announced != str(place.length):
                    raise ReplicaFailure(FailureKind.WRONG, "the reply is another range than was asked for")
            for block in self._blocks(reply, length):
                length -= len(block)
                yield block
        if length:
            raise ReplicaFailure(FailureKind.CUT, "the reply ended early")

    def fill(self, buffers: RangeBuffers, ranges: Sequence[Range]) -> None:
        if len(ranges) == 1 or not self._takes_many:
            self.fill_one(buffers, ranges[0])
            return
        with self._reply({"Range": header_of(ranges)}) as reply:
            if reply.status_code == _WHOLE:
                self._takes_many = False  # and the body stays unread: it is the whole file
                self._require_same(reply)
                return
            self._require_partial(reply)
            kind, _, parameters = reply.headers.get("Content-Type", "").partition(";")
            if kind.strip().lower() != "multipart/byteranges":
                place, most = self._place(reply), sum(length for _, length in ranges)
                if place.length > most * 11 // 10 + _MERGED:
                    self._takes_many = False  # much between the ranges would be read, too
                    return
                self._take_part(place, self._blocks(reply, place.length), buffers)
                self._takes_many = self._takes_many and len(buffers.missing()) < len(ranges)
                return
            boundary = _parameter(parameters, "boundary")
            if not boundary:
                raise ReplicaFailure(FailureKind.WRONG, "the parts of the reply have no boundary")
            most = sum(length for _, length in ranges) * 11 // 10 + (len(ranges) + 1) * 8192
            body = self._blocks(reply, most)
            for place, blocks in MultipartReply(body, boundary, len(ranges) + 1).parts():
                self._require_total(place)
                self._take_part(place, blocks, buffers)
            for _ in body:
                pass  # what is after the last part

    def close(self) -> None:
        self._session.close()

    # -- one request

    @contextmanager
    def _reply(self, headers: dict[str, str]) -> Iterator[Response]:
        """The reply to a GET, after redirections; its body is not read yet, and its connection ends with a failure."""
        began = time.monotonic()
        try:
            reply = self._get(headers)
        finally:
            self._counts.waited_s += time.monotonic() - began
        try:
            self._require_status(reply)
            yield reply
        finally:
            # a body that was not read to its end takes its connection with it
            reply.close()

    def _get(self, headers: dict[str, str]) -> Response:
        url, visited = self._at, set[str]()
        usual = {"Accept-Encoding": "identity"}
        if self._validator and self._seen:
            usual["If-Range"] = self._validator
        for _ in range(_REDIRECTIONS + 1):
            if url in visited:
                raise ReplicaFailure(FailureKind.WRONG, "it redirects in a circle")
            visited.add(url)
            same_host = urlsplit(url).netloc == urlsplit(self._url).netloc
            token = self._token() if may_carry_token(url) and same_host else None
            carried = {"Authorization": f"Bearer {token}"} if token else {}
            self._counts.requests += 1
            try:
                reply = self._session.get(
                    url, headers=usual | headers | carried, stream=True, allow_redirects=False, timeout=self._timeout_s
                )
            except (requests.RequestException, HTTPError) as error:
                self._at = self._url
                raise _ended(error) from error
            if reply.status_code not in _REDIRECTS:
                self._at = url
                return reply
            reply.close()
            url = _target(url, reply.headers.get("Location", ""))
        raise ReplicaFailure(FailureKind.WRONG, f"it redirects more than {_REDIRECTIONS} times")

    def _require_status(self, reply: Response) -> None:
        status = reply.status_code
        if status in (_WHOLE, _PARTIAL, _UNSATISFIABLE):
            if reply.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
                raise ReplicaFailure(FailureKind.WRONG, "it encodes the bytes, which was not asked for")
            return
        self._at = self._url  # the next attempt asks the redirector again
        if status in _MISSING:
            raise ReplicaFailure(FailureKind.MISSING, f"it has no such file (HTTP {status})")
        if status in _REFUSED:
            raise ReplicaFailure(FailureKind.REFUSED, f"it refuses the credential (HTTP {status})")
        if status in _BUSY or status >= 500:
            raise ReplicaFailure(FailureKind.BUSY, f"HTTP {status}", wait_s=_retry_after(reply))
        raise ReplicaFailure(FailureKind.WRONG, f"HTTP {status}")

    def _require_partial(self, reply: Response) -> None:
        if reply.status_code == _UNSATISFIABLE:
            raise ReplicaFailure(FailureKind.CHANGED, "it has fewer bytes than before")
        self._require_same(reply)
        if reply.status_code == _WHOLE:
            raise ReplicaFailure(FailureKind.WRONG, "it ignores ranges")

    def _require_data(self, reply: Response) -> None:
        """Refuse a page of text in place of a file."""
        kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/html" and not urlsplit(self._url).path.endswith((".html", ".htm")):
            raise ReplicaFailure(FailureKind.WRONG, "it answers with a page of HTML")

    def _require_same(self, reply: Response) -> None:
        """Refuse another file than the one that was opened. The first reply says which one that is."""
        tag, modified = reply.headers.get("ETag"), reply.headers.get("Last-Modified")
        if self._seen is None:
            self._seen = tag, modified
            # only a strong validator shows that the bytes are the same
            self._validator = tag if tag and not tag.startswith("W/") else modified
            return
        for before, now in zip(self._seen, (tag, modified), strict=True):
            if before and now and before != now:
                raise ReplicaFailure(FailureKind.CHANGED, "the file was replaced")

    def _place(self, reply: Response) -> ContentRange:
        place = ContentRange.parse(reply.headers.get("Content-Range", ""))
        self._require_total(place)
        return place

    def _require_total(self, place: ContentRange) -> None:
        if None not in (self.size, place.total) and place.total != self.size:
            raise ReplicaFailure(FailureKind.CHANGED, f"it has {place.total} bytes, and had {self.size}")

    def _blocks(self, reply: Response, most: int) -> Iterator[bytes]:
        """The body, of at most so many bytes."""
        while True:
            began = time.monotonic()
            try:
                block = reply.raw.read1(_BLOCK, decode_content=False)  # what has come: it counts if no more follows
            except (HTTPError, requests.RequestException, OSError) as error:
                raise _ended(error) from error
            self._counts.waited_s += time.monotonic() - began
            if not block:
                return
            most -= len(block)
            if most < 0:
                raise ReplicaFailure(FailureKind.WRONG, "it sends more bytes than were asked for")
            self._counts.received += len(block)
            yield block

    def _take_part(self, place: ContentRange, blocks: Iterator[bytes], buffers: RangeBuffers) -> None:
        offset, taken = place.offset, 0
        for block in blocks:
            taken += buffers.put(offset, block)
            offset += len(block)
        if offset < place.offset + place.length:
            raise ReplicaFailure(FailureKind.CUT, "the reply ended early")
        if not taken:
            raise ReplicaFailure(FailureKind.WRONG, "a part of the reply was not asked for")


def _ended(error: Exception) -> ReplicaFailure:
    if isinstance(error, ReadTimeoutError | TimeoutError):
        return ReplicaFailure(FailureKind.SILENT, "no byte came in time")
    if isinstance(error, requests.RequestException | HTTPError):
        failure = failure_of(error)
        if failure.tls:
            return ReplicaFailure(FailureKind.DISTRUSTED, failure.why)
        if failure.why == "no reply in time":
            return ReplicaFailure(FailureKind.SILENT, "no byte came in time")
        return ReplicaFailure(FailureKind.CUT if failure.sent else FailureKind.UNREACHABLE, failure.why)
    return ReplicaFailure(FailureKind.CUT, f"the connection ended ({type(error).__name__})")


def _retry_after(reply: Response) -> float | None:
    text = reply.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_WAIT_S) if text.isascii() and text.isdecimal() and len(text) < 8 else None


def _parameter(text: str, name: str) -> str:
    """The value of a parameter of a content type, without quotes; empty: it has none."""
    for part in text.split(";"):
        key, _, value = part.strip().partition("=")
        if key.lower() == name:
            return value.strip().strip('"')
    return ""


def adler32_of(text: str) -> str | None:
    """The checksum of a `Digest` header (RFC 3230), in lower case with all eight digits."""
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "adler32" and len(value) <= 8 and set(value.lower()) <= set("0123456789abcdef"):
            return value.lower().zfill(8) if value else None
    return None


def _target(url: str, location: str) -> str:
    """The URL of a redirection, which never leads from TLS to a connection without."""
    try:
        target = urljoin(url, location)
        scheme, host = urlsplit(target).scheme, urlsplit(target).hostname
    except ValueError:
        target, scheme, host = "", "", None
    if not host or scheme not in ("http", "https") or (scheme == "http" and urlsplit(url).scheme == "https"):
        raise ReplicaFailure(FailureKind.WRONG, "it redirects to what is no web server, or to one without TLS")
    return target
