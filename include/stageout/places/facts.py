"""Questions of stage-out to a site's storage, with its options, and the answers.

A `SitePlace` takes logical names; below it, a `UrlStorage` speaks one protocol and takes URLs.
"""

from __future__ import annotations

import errno
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from include.fts.states import FailureReason
from include.settings.sites import ChecksumMode
from include.storage.store import Store


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Options of a storage; those that its protocols do not need are ignored.

    Attributes:
        store: The store that the site's `store` names, opened with its key; for `s3:` URLs.
        fts_url: The embedded FTS service, which has the files of `mock:` URLs.
        authorities: A PEM bundle, or a folder of hashed names, for the certificates of servers; None: the system's.
        threads: Requests to one site at the same time.
        timeout_s: Seconds that a reply may take to begin, a computed checksum included.
        batch_s: Seconds after which nothing more of a call is begun: what is left is answered as not asked.
    """

    store: Store | None = None
    fts_url: str | None = None
    authorities: str | None = None
    threads: int = 16
    timeout_s: float = 60.0
    batch_s: float = 60.0


T = TypeVar("T")

UNKNOWN_TIME = datetime.max.replace(tzinfo=UTC)
"""Of a file whose time the storage does not report: it never counts as old."""
BLOCK = 1 << 20
"""Bytes that are read at once."""
_HEX = re.compile(r"[0-9A-Fa-f]{1,8}")
_NO_CHECKSUM = "00000000"
"""What clients report after a failed computation; no Adler-32 of a file is zero."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A storage's report on a file: its bytes, and `adler32:0a1b2c3d` or crc32c; None: it reports no checksum.

    `modified`: when it was written; None where a look does not say.
    """

    size: int
    checksum: str | None
    modified: datetime | None = field(default=None, compare=False)


FileAnswer = FileFacts | FailureReason | None
"""None: the file does not exist. FailureReason: it is unknown whether it does; its scope is the caller's to set."""
ListedFile = tuple[str, int, datetime]
"""Name, bytes, and when it was modified; UNKNOWN_TIME where the storage does not say."""


class SitePlace(Protocol):
    """The storage of one site with one credential. It may be used by several threads."""

    def look(self, names: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]:
        """Size and checksum of files.

        `checksum`: which checksum is asked for. READ_BACK reads every file, for its Adler-32. Returns an answer for
        each name. What the storage or the network refuses is an answer, not an error. Raises NightshiftError: a fault
        of this machine or of the configuration, which holds for every name.
        """

    def remove(self, names: Sequence[str]) -> Mapping[str, FailureReason | None]:
        """Remove files; None: the file is gone, also when it did not exist. Raises as `look` does."""

    def read(self, name: str, offset: int, length: int) -> bytes | FailureReason:
        """Bytes of a file; fewer are a failure. Raises as `look` does."""

    def write(self, name: str, data: bytes) -> FailureReason | None:
        """Write a small file; None: it is there. Raises as `look` does."""

    def copy(self, source: str, name: str) -> FailureReason | None:
        """Have the storage copy a file of its own by itself, as in a third-party copy. Raises as `look` does."""

    def listed(self, prefix: str) -> Iterator[ListedFile]:
        """All files below a folder, by logical name.

        Raises StageoutError: PLACE_UNLISTED; then what was listed so far is not all.
        """

    def close(self) -> None:
        """Close its connections."""


class UrlStorage(Protocol):
    """The questions of `SitePlace` for URLs of one protocol; `listed` has names relative to the folder."""

    def look(self, urls: Sequence[str], *, checksum: ChecksumMode) -> Mapping[str, FileAnswer]: ...

    def remove(self, urls: Sequence[str]) -> Mapping[str, FailureReason | None]: ...

    def read(self, url: str, offset: int, length: int) -> bytes | FailureReason: ...

    def write(self, url: str, data: bytes) -> FailureReason | None: ...

    def copy(self, source: str, url: str) -> FailureReason | None: ...

    def listed(self, url: str) -> Iterator[ListedFile]: ...

    def close(self) -> None: ...


def failed(number: int, text: str) -> FailureReason:
    """A failure whose place is not known here."""
    return FailureReason(None, number, text)


def whole(data: bytes, length: int) -> bytes | FailureReason:
    """Bytes that were read, if they are as many as were asked for."""
    return data if len(data) == length else failed(errno.EIO, f"{len(data)} bytes were read, not {length}")


def unsupported(verb: str) -> FailureReason:
    """A failure of what a protocol does not do here."""
    return failed(errno.EOPNOTSUPP, f"{verb}: not over this protocol")


def at_once(work: Callable[[str], T], urls: Sequence[str], options: PlaceOptions) -> dict[str, T | FailureReason]:
    """The work on each URL, some at the same time. A storage that hangs takes `batch_s` and one call at most."""
    ends = time.monotonic() + options.batch_s

    def begun(url: str) -> T | FailureReason:
        if time.monotonic() > ends:
            return failed(errno.ETIMEDOUT, "not asked: the storage answers too slowly")
        return work(url)

    different = list(dict.fromkeys(urls))
    if len(different) <= 1:
        return {url: work(url) for url in different}
    with ThreadPoolExecutor(min(options.threads, len(different)), "place") as pool:
        return dict(zip(different, pool.map(begun, different), strict=True))


def read_back(blocks: Iterable[bytes], size: int | None) -> FileFacts | FailureReason:
    """Size and Adler-32 of what is read; a failure where that is not `size` bytes (None: any)."""
    value, count = 1, 0
    for block in blocks:
        value = zlib.adler32(block, value)
        count += len(block)
        if size is not None and count > size:
            break
    if size is not None and count != size:
        more = "more than " if count > size else ""
        return failed(errno.EIO, f"{more}{min(count, size)} bytes were read of a file of {size} bytes")
    return FileFacts(count, f"adler32:{value:08x}")


def checksum_of(algorithm: str, text: str) -> str | None:
    """A checksum in our form, from hexadecimal digits; None if it is not one. Servers leave out leading zeros."""
    digits = text.lower().zfill(8)
    if not _HEX.fullmatch(text) or (algorithm == "adler32" and digits == _NO_CHECKSUM):
        return None
    return f"{algorithm}:{digits}"
