"""Storages that are reached by HTTP and WebDAV: XRootD, dCache, StoRM, EOS.

Third-party copy is WebDAV's COPY as the WLCG uses it: sent to the destination, which pulls from the header `Source` and
replies with performance markers until it is done. Checksums come by `Want-Digest` (RFC 3230).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from include.http_calls import failure_of, pooled_session
from lab.fts.copies.storages import BLOCK, CopyFault

SCHEMES = {"http": "http", "https": "https", "dav": "http", "davs": "https"}
_CONNECT_S, _IDLE_S = 10.0, 180.0
_ERRNO = {401: 1, 403: 1, 404: errno.ENOENT, 412: 17, 408: errno.ETIMEDOUT, 503: 16, 507: errno.ENOSPC}
_TEXTS = {401: "Authentication required", 403: "Permission refused", 404: "File not found", 507: "No space left"}
_MOST_PARENTS = 10_000
_NO_COPY = frozenset({400, 405, 501})
"""Statuses of a storage that does not know COPY; XRootD without TLS replies 400."""


class CopyNotPossible(CopyFault):
    """The storages cannot copy by themselves; the bytes may be streamed."""

    code = "fts-service-copy-not-possible"


class WebdavStorage:
    """Requests to any host, with the tokens that users gave for their files.

    `authorities`: a PEM bundle for their certificates; None: the system's.
    """

    def __init__(self, authorities: Path | None, threads: int) -> None:
        self._session = pooled_session(threads)
        if authorities is not None:
            self._session.verify = str(authorities)
        self._parents: set[str] = set()

    def size(self, url: str, token: str | None) -> int | None:
        with self._request("HEAD", url, token) as reply:
            if reply.status_code == 404:
                return None
            length = _checked(reply).headers.get("content-length", "")
            if not length.isdigit():
                raise CopyFault(errno.EIO, "The storage does not report the size of the file")
            return int(length)

    def checksum(self, url: str, algorithm: str, token: str | None) -> str | None:
        with self._request("HEAD", url, token, {"Want-Digest": algorithm}) as reply:
            digest = _checked(reply).headers.get("digest", "")
        for part in digest.split(","):
            name, _, value = part.strip().partition("=")
            if name.lower() == algorithm:
                return _hexadecimal(value) if algorithm in ("md5", "sha1", "sha256") else value.lower()
        return None

    def read(self, url: str, token: str | None) -> Iterator[bytes]:
        with self._request("GET", url, token) as reply, _network_faults():
            yield from _checked(reply).iter_content(BLOCK)

    def clean(self, url: str, draft: str) -> None:
        """A part has the name of the destination, as with FTS: it may be the file of another copy."""

    def write(self, url: str, pieces: Iterator[bytes], size: int, token: str | None, *, draft: str) -> None:  # noqa: ARG002
        with self._request("PUT", url, token, data=_Body(pieces, size)) as reply:
            _checked(reply)

    def remove(self, url: str, token: str | None) -> None:
        with self._request("DELETE", url, token) as reply:
            if reply.status_code != 404:
                _checked(reply)

    def copy(self, source: str, destination: str, tokens: tuple[str, str] | None, *, check: Callable[[], None]) -> None:
        """Let the destination pull from the source. Raises CopyNotPossible: the destination has no COPY; CopyFault.

        `check`: called at each marker; if it raises, the connection is closed, at which storages stop.
        """
        headers = {"Source": _http(source), "Credential": "none", "Overwrite": "T"}
        if tokens:
            _check_protected(source)
            headers["TransferHeaderAuthorization"] = f"Bearer {tokens[0]}"
        self._make_parents(destination, tokens and tokens[1])
        with self._request("COPY", destination, tokens and tokens[1], headers) as reply:
            if reply.status_code in _NO_COPY:
                raise CopyNotPossible(errno.EIO, f"HTTP {reply.status_code} : the storage does not copy by itself")
            _checked(reply)
            last = ""
            with _network_faults("No performance marker received"):
                for line in reply.iter_lines(chunk_size=None):
                    check()
                    text = line.decode(errors="replace").strip()
                    if text.lower().startswith(("success", "failure", "aborted")):
                        last = text
        at_once = not last and reply.status_code in (201, 204)
        if not at_once and not last.lower().startswith("success"):
            raise CopyFault(errno.EIO, last[:500] or "The storage ended the copy without its result (end-of-file)")

    def _make_parents(self, url: str, token: str | None) -> None:
        """Create the folder of a file: COPY, unlike PUT, does not. What is not understood is left to the copy."""
        parent = url.partition("?")[0].rpartition("/")[0]
        if parent in self._parents or not urlsplit(parent).path.strip("/"):
            return
        with self._request("MKCOL", parent, token) as reply:
            status = reply.status_code
        if status == 409:
            self._make_parents(parent, token)
            with self._request("MKCOL", parent, token) as reply:
                status = reply.status_code
        if status in (201, 405):
            if len(self._parents) > _MOST_PARENTS:
                self._parents.clear()
            self._parents.add(parent)

    @contextlib.contextmanager
    def _request(
        self, method: str, url: str, token: str | None, headers: dict[str, str] | None = None,
        data: _Body | None = None,
    ) -> Iterator[requests.Response]:  # fmt: skip
        headers = dict(headers or {})
        if token:
            _check_protected(url)
            headers["Authorization"] = f"Bearer {token}"
        with _network_faults():
            reply = self._session.request(
                method, _http(url), headers=headers, data=data, stream=True, timeout=(_CONNECT_S, _IDLE_S),
                allow_redirects=method in ("HEAD", "GET"),  # the token of a source never goes to another host
            )  # fmt: skip
        with reply:
            yield reply


class _Body:
    """A body of a known length: XRootD takes no chunked one."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces, self._size, self._rest = pieces, size, b""

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def _http(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{SCHEMES.get(scheme, scheme)}://{rest}"


def _check_protected(url: str) -> None:
    """Raises CopyFault where a token would be sent over the network in clear."""
    parts = urlsplit(_http(url))
    with contextlib.suppress(ValueError):
        if parts.scheme == "https" or ipaddress.ip_address(parts.hostname or "").is_loopback:
            return
    if parts.scheme != "https" and parts.hostname != "localhost":
        raise CopyFault(1, "Permission refused: tokens are sent by https only")


def _checked(reply: requests.Response) -> requests.Response:
    """The reply, if it is one of success. Raises CopyFault."""
    status = reply.status_code
    if 200 <= status < 300:
        return reply
    raise CopyFault(
        _ERRNO.get(status, errno.EIO), f"HTTP {status} : {_TEXTS.get(status, 'the storage refused the request')}"
    )


def _hexadecimal(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).hex()
    except ValueError:
        return value.lower()


@contextlib.contextmanager
def _network_faults(instead: str | None = None) -> Iterator[None]:
    try:
        yield
    except (requests.RequestException, HTTPError) as error:
        failure = failure_of(error)
        if failure.sent:
            timed_out = isinstance(error, requests.Timeout)
            number = errno.ETIMEDOUT if timed_out else errno.EIO
            raise CopyFault(number, instead or ("Connection timed out" if timed_out else failure.why)) from None
        raise CopyFault(112, "Result Could not connect to server  after 1 attempts") from None
