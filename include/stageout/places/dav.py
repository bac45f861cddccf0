"""The storage of a site over HTTP and WebDAV: HEAD with a digest (RFC 3230), DELETE, PROPFIND.

Replies are hostile input: their time, size and redirections are bounded, and no text of them is repeated.
"""

from __future__ import annotations

import base64
import binascii
import errno
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import NoReturn, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit
from xml.parsers import expat

import requests
from urllib3.exceptions import HTTPError

from include.fts.errors import CREDENTIAL_UNREADABLE
from include.fts.states import FailureReason
from include.fts.transport import BearerToken, Credential, X509Files
from include.http_calls import CallFailure, failure_of, may_carry_token, pooled_session, repeated
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.errors import PLACE_UNLISTED
from include.stageout.files import MAX_SIZE
from include.stageout.places import facts

PROPFIND = (
    b'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop>'
    b"<D:resourcetype/><D:getcontentlength/><D:getlastmodified/></D:prop></D:propfind>"
)
_MOST_TEXT = 8192
"""Characters of one value; a path has at most 4096 bytes."""
_MOST_XML_DEPTH = 32
_SIZE, _TIME, _PATH = "DAV: getcontentlength", "DAV: getlastmodified", "DAV: href"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file or folder. An attribute that the server does not report in the standard's form has the value None."""

    href: str
    size: int | None
    modified: datetime | None
    is_folder: bool


def folder_entries(blocks: Iterable[bytes]) -> Iterator[FolderEntry]:
    """The entries of a reply.

    Raises ValueError: it is no XML, or has a document type, values or depths that no server needs.
    """
    reader = _Reader()
    try:
        for block in blocks:
            reader.parser.Parse(block, False)
            yield from reader.taken()
        reader.parser.Parse(b"", True)
    except expat.ExpatError:
        raise ValueError("not XML, or cut off") from None
    yield from reader.taken()


class _Reader:
    def __init__(self) -> None:
        self.parser = parser = expat.ParserCreate("utf-8", namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        # entities are declared in a document type: without one there is nothing to expand or to fetch
        parser.StartDoctypeDeclHandler = self._doctype
        self._entries: list[FolderEntry] = []
        self._values: dict[str, str] = {}
        self._collected: list[str] = []
        self._length = self._depth = 0
        self._is_folder = False

    def taken(self) -> list[FolderEntry]:
        entries, self._entries = self._entries, []
        return entries

    def _start(self, name: str, _: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MOST_XML_DEPTH:
            raise ValueError("elements in too many elements")
        if self._depth == 1 and name != "DAV: multistatus":
            raise ValueError("another document")
        if name == "DAV: response":
            self._values, self._is_folder = {}, False
        elif name == "DAV: collection":
            self._is_folder = True
        self._collected, self._length = [], 0

    def _end(self, name: str) -> None:
        self._depth -= 1
        text = "".join(self._collected).strip()
        if name in {_SIZE, _TIME, _PATH} and text:
            # an empty one belongs to the properties that the server does not have
            self._values[name] = text
        elif name == "DAV: response" and _PATH in self._values:
            size, modified = _size_of(self._values.get(_SIZE, "")), http_time(self._values.get(_TIME, ""))
            self._entries.append(FolderEntry(self._values[_PATH], size, modified, self._is_folder))
        self._collected, self._length = [], 0

    def _text(self, text: str) -> None:
        self._length += len(text)
        if self._length > _MOST_TEXT:
            raise ValueError("a value is too long")
        self._collected.append(text)

    def _doctype(self, *_: object) -> NoReturn:
        raise ValueError("it has a document type")


def _size_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def http_time(text: str) -> datetime | None:
    """Parse a time in the form of HTTP; None if it has another form."""
    try:
        found = parsedate_to_datetime(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


T = TypeVar("T")

_SCHEMES = {"davs": "https", "dav": "http"}
_FAILURES: Mapping[int, int] = {
    401: errno.EACCES, 403: errno.EACCES, 405: errno.EOPNOTSUPP, 408: errno.ETIMEDOUT, 423: errno.EBUSY,
    429: errno.EAGAIN, 501: errno.EOPNOTSUPP, 502: errno.EAGAIN, 503: errno.EAGAIN, 504: errno.ETIMEDOUT,
    507: errno.ENOSPC,
}  # fmt: skip
"""The errno for each status; others are EIO."""
_ABSENT, _MOVED = frozenset({404, 410}), frozenset({301, 302, 303, 307, 308})
_CONNECT_S, _RETRIES, _REDIRECTIONS = 10.0, 1, 4
_BYTES_A_SECOND = 500_000
"""The slowest reading that is waited for; FTS allows a copy as much."""
_MOST_REPLY = 64 << 20
"""Bytes of the listing of one folder: some 100,000 files."""
_MOST_MARKERS = 1 << 20
_MOST_DEPTH, _MOST_FOLDERS = 32, 100_000
_DIGEST = re.compile(r"\s*(adler32|crc32c)\s*=\s*([0-9A-Za-z+/]{1,8}={0,2})\s*", re.IGNORECASE)


class DavStorage:
    """A session for one site and one credential; `clock` is monotonic."""

    def __init__(
        self,
        site: RemoteSite,
        credential: Credential | None,
        options: facts.PlaceOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._site, self._options, self._clock = site, options, clock
        self._pause = pause or threading.Event().wait
        self._session = pooled_session(options.threads)
        self._token = credential.token if isinstance(credential, BearerToken) else None
        if isinstance(credential, X509Files):
            self._session.cert = (credential.certificate, credential.key or credential.certificate)
        if options.authorities:
            self._session.verify = options.authorities
        # what is encoded on the way has another length and another checksum
        self._session.headers.update({"Accept-Encoding": "identity", "User-Agent": "nightshift"})

    def close(self) -> None:
        self._session.close()

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, facts.FileAnswer]:
        if checksum is ChecksumMode.READ_BACK:
            read = partial(self._call, "GET", work=self._read_back, headers={})
            return facts.at_once(read, urls, self._options)
        headers = {"Want-Digest": checksum.value} if checksum is not ChecksumMode.NONE else {}
        return facts.at_once(partial(self._call, "HEAD", work=_facts, headers=headers), urls, self._options)

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]:
        return facts.at_once(partial(self._call, "DELETE", work=_nothing, headers={}), urls, self._options)

    def read(self, url: str, offset: int, length: int) -> bytes | FailureReason:
        def part(response: requests.Response) -> bytes | FailureReason:
            if response.status_code != 206:
                return facts.failed(errno.EPROTO, "GET: the server ignores ranges")
            return facts.whole(b"".join(self._parts(response, length + 1)), length)

        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        return _existing("GET", self._call("GET", url, work=part, headers=headers))

    def write(self, url: str, data: bytes) -> FailureReason | None:
        written = _existing("PUT", self._call("PUT", url, work=lambda _: True, headers={}, body=data))
        return written if isinstance(written, FailureReason) else None

    def copy(self, source: str, url: str) -> FailureReason | None:
        def ended(response: requests.Response) -> bool | FailureReason:
            # progress is reported in lines, and the last one has the result
            text = b"".join(self._parts(response, _MOST_MARKERS)).decode("utf-8", "replace").strip()
            good = response.status_code != 202 or text.rpartition("\n")[2].lower().startswith("success")
            return good or facts.failed(errno.EIO, "COPY: the server could not copy it")

        scheme, _, rest = source.partition("://")
        headers = {"Source": f"{_SCHEMES.get(scheme, scheme)}://{rest}", "Credential": "none", "Overwrite": "T"}
        if self._token:
            headers["TransferHeaderAuthorization"] = f"Bearer {self._token}"
        copied = _existing("COPY", self._call("COPY", url, work=ended, headers=headers))
        return copied if isinstance(copied, FailureReason) else None

    def listed(self, url: str) -> Iterator[facts.ListedFile]:
        waiting, folders = [""], 0
        while waiting:
            folder = waiting.pop()
            folders += 1
            if folders > _MOST_FOLDERS or folder.count("/") > _MOST_DEPTH:
                raise PLACE_UNLISTED(url, f"more than {_MOST_FOLDERS} folders, or {_MOST_DEPTH} in each other")
            found = self._folder(url, folder)
            # removed since the folder above it was listed
            for name, entry in (found or {}).items():
                if entry.is_folder:
                    waiting.append(f"{folder}{name}/")
                elif entry.size is not None:
                    yield f"{folder}{name}", entry.size, entry.modified or facts.UNKNOWN_TIME

    def _folder(self, url: str, folder: str) -> dict[str, FolderEntry] | None:
        """Return what is directly in a folder, by name; None: it does not exist."""
        address = f"{url.rstrip('/')}/{quote(folder, safe='/._~+=:@,-')}"
        path = _path_of(address)

        def entries(response: requests.Response) -> dict[str, FolderEntry] | FailureReason:
            try:
                named = ((_child(path, entry.href), entry) for entry in folder_entries(self._blocks(response)))
                return {name: entry for name, entry in named if name}
            except ValueError as error:
                return facts.failed(errno.EPROTO, f"the reply to PROPFIND is not a listing: {error}")

        headers = {"Depth": "1", "Content-Type": "application/xml; charset=utf-8"}
        found = self._call("PROPFIND", address, work=entries, headers=headers, body=PROPFIND)
        if isinstance(found, FailureReason):
            raise PLACE_UNLISTED(address, found.text)
        return found

    def _call(
        self,
        method: str,
        url: str,
        *,
        work: Callable[[requests.Response], T | FailureReason],
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> T | FailureReason | None:
        """Return what `work` makes of the reply; None for what does not exist."""
        outcome = repeated(
            lambda: self._followed(method, url, work, headers, body),
            repeatable=True, retries=_RETRIES, pause=self._pause,
        )  # fmt: skip
        if isinstance(outcome, CallFailure):
            number = errno.ECONNRESET if outcome.sent else errno.ECONNREFUSED
            return facts.failed(number, f"{method}: {outcome.why}")
        return outcome

    def _followed(
        self,
        method: str,
        url: str,
        work: Callable[[requests.Response], T | FailureReason],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> T | FailureReason | CallFailure | None:
        scheme, _, rest = url.partition("://")
        address = first = f"{_SCHEMES.get(scheme, scheme)}://{rest}"
        for _ in range(_REDIRECTIONS + 1):
            if self._token and not may_carry_token(address):
                return facts.failed(
                    errno.EOPNOTSUPP, "a token is not sent without TLS. Hint: use davs in the site's rules."
                )
            same = urlsplit(address).netloc == urlsplit(first).netloc
            token = {"Authorization": f"Bearer {self._token}"} if self._token is not None and same else {}
            if not same:
                headers = {name: value for name, value in headers.items() if not name.startswith("TransferHeader")}
            outcome = self._once(method, address, work, {**headers, **token}, body)
            if not isinstance(outcome, _Redirection):
                return outcome
            try:
                address = urljoin(address, outcome)
                refusal = self._refuses(method, first, address)
            except ValueError:
                refusal = "to what is no URL"
            if refusal:
                return facts.failed(errno.EACCES, f"{method}: the server redirects {refusal}")
        return facts.failed(errno.ELOOP, f"{method}: the server redirects more than {_REDIRECTIONS} times")

    def _refuses(self, method: str, first: str, address: str) -> str | None:
        """Return why a redirection is not followed: a server that lies must not have us change files of another one."""
        scheme = urlsplit(address).scheme
        if scheme not in {"https", urlsplit(first).scheme}:
            return "to a URL without TLS, or of another protocol"
        if method in {"HEAD", "GET"}:
            return None
        # servers put the permission to go on into the query
        bare = urlunsplit(urlsplit(address)._replace(query="", fragment=""))
        same = {bare, bare.replace("https:", "davs:", 1), bare.replace("http:", "dav:", 1)}
        return None if any(map(self._site.allows, same)) else "to a URL that is not below one in `allowed` of the site"

    def _once(
        self,
        method: str,
        address: str,
        work: Callable[[requests.Response], T | FailureReason],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> T | FailureReason | CallFailure | _Redirection | None:
        try:
            with self._session.request(
                method, address, data=body, headers=dict(headers), stream=True, allow_redirects=False,
                timeout=(_CONNECT_S, self._options.timeout_s),
            ) as response:  # fmt: skip
                status = response.status_code
                if status in _MOVED and "Location" in response.headers:
                    return _Redirection(response.headers["Location"])
                if status in _ABSENT:
                    _emptied(response)
                    return None
                if not 200 <= status < 300 or (status == 207) is not (method == "PROPFIND"):
                    return facts.failed(_FAILURES.get(status, errno.EIO), f"{method}: HTTP {status}")
                found = work(response)
                if not isinstance(found, FailureReason):
                    _emptied(response)
                return found
        except (requests.RequestException, HTTPError) as error:
            return failure_of(error)
        except TimeoutError:
            return facts.failed(errno.ETIMEDOUT, f"{method}: the reply was not complete in time")
        except OSError as error:
            # of the library's check of the files of the credential; it names the file
            fault = str(error)
        raise CREDENTIAL_UNREADABLE(f"{fault}; {CREDENTIAL_UNREADABLE.hint}")

    def _read_back(self, response: requests.Response) -> facts.FileFacts | FailureReason:
        size = _size(response)
        if size is None:
            return facts.failed(errno.EPROTO, "GET: the reply has no usable Content-Length")
        ends = self._clock() + self._options.timeout_s + size / _BYTES_A_SECOND
        late = False

        def blocks() -> Iterator[bytes]:
            nonlocal late
            while not late and (block := response.raw.read1(facts.BLOCK)):
                yield block
                late = self._clock() > ends

        found = facts.read_back(blocks(), size)
        return facts.failed(errno.ETIMEDOUT, f"GET: {size} bytes were not read in time") if late else found

    def _parts(self, response: requests.Response, most: int) -> Iterator[bytes]:
        """The first bytes of a body, which is given as long as a reply may take to begin."""
        ends = self._clock() + self._options.timeout_s
        while most > 0 and (block := response.raw.read1(most)):
            if self._clock() > ends:
                raise TimeoutError
            yield block
            most -= len(block)

    def _blocks(self, response: requests.Response) -> Iterator[bytes]:
        ends, count = self._clock() + self._options.timeout_s, 0
        while block := response.raw.read1(1 << 16):
            count += len(block)
            if count > _MOST_REPLY:
                raise ValueError("too large")
            if self._clock() > ends:
                raise ValueError("not complete in time")
            yield block


class _Redirection(str):
    """The new URL, which may be relative."""

    __slots__ = ()


def _facts(response: requests.Response) -> facts.FileFacts | FailureReason:
    size = _size(response)
    if size is None:
        return facts.failed(errno.EPROTO, "HEAD: the reply has no usable Content-Length")
    return facts.FileFacts(
        size, _digest(response.headers.get("Digest", "")), http_time(response.headers.get("Last-Modified", ""))
    )


def _existing(method: str, answer: T | FailureReason | None) -> T | FailureReason:
    return facts.failed(errno.ENOENT, f"{method}: it does not exist") if answer is None else answer


def _nothing(_: requests.Response) -> None:
    return None


def _size(response: requests.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    size = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    return None if encoded or size is None or size > MAX_SIZE else size


def _digest(header: str) -> str | None:
    """The first checksum of the header that we know: hexadecimal, as most servers write it, or Base64."""
    for part in header[:4096].split(","):
        found = _DIGEST.fullmatch(part)
        if found is None:
            continue
        algorithm, value = found[1].lower(), found[2]
        if value.endswith("=="):
            try:
                value = base64.b64decode(value, validate=True).hex()
            except binascii.Error:
                continue
        if checksum := facts.checksum_of(algorithm, value):
            return checksum
    return None


def _emptied(response: requests.Response) -> None:
    """Read what is left of a short reply, so that its connection can be used again."""
    for _ in range(4):
        if not response.raw.read1(1 << 14):
            break


def _path_of(url: str) -> str:
    return re.sub("/+", "/", unquote(urlsplit(url).path, errors="surrogateescape")).rstrip("/")


def _child(folder: str, href: str) -> str | None:
    """The name of an entry that is directly in the folder; None for the folder itself, and for what lies elsewhere."""
    try:
        path = _path_of(href)
    except ValueError:
        return None
    parent, _, name = path.rpartition("/")
    # what is no UTF-8 has no URL here, and would be taken for another name
    return name if parent == folder and name not in {"", ".", ".."} and name.isprintable() else None
