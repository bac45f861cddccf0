"""What the service asks of a copier: start a copy, cancel it, and say which have ended."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from include.fts.states import FailureReason, FailureScope

# FTS's own test whether to try again (url-copy/heuristics); the first fit counts.
_ALWAYS = re.compile(
    r"performance marker|name or service not known|connection timed out|end-of-file|SRM_INTERNAL_ERROR"
    r"|was forcefully killed|operation timeout",
    re.IGNORECASE,
)
_NEVER = re.compile(
    r"proxy expired|file exists|no such file|permission denied|checksum do not match|CHECKSUM MISMATCH"
    r"|certificate has expired|SRM_NO_FREE_SPACE|not ONLINE",
    re.IGNORECASE,
)
_SOURCE = frozenset(
    {1, 2, 7, 13, 20, 21, 36, 93}
)  # EPERM ENOENT E2BIG EACCES ENOTDIR EISDIR ENAMETOOLONG EPROTONOSUPPORT
_FINAL = {
    FailureScope.SOURCE: _SOURCE,
    FailureScope.DESTINATION: _SOURCE | {14, 17, 30},  # EFAULT EEXIST EROFS
    FailureScope.TRANSFER: frozenset({27, 28}),  # EFBIG ENOSPC
    FailureScope.GENERAL_FAILURE: frozenset[int](),
}


def recoverable(failure: FailureReason) -> bool:
    """Tell whether FTS would try again after this failure."""
    if failure.errno == errno.ETIMEDOUT or _ALWAYS.search(failure.text):
        return True
    if failure.errno == errno.ECANCELED or _NEVER.search(failure.text):
        return False
    return failure.scope is None or failure.errno not in _FINAL[failure.scope]


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """A file to copy. ``checksum``: `algorithm:digits`, an algorithm alone, or None; ``verify``: b, s, t or n.

    ``draft``: `FileRecord.draft`.
    """

    file_id: int
    source: str
    destination: str
    checksum: str | None = None
    verify: str = "n"
    overwrite: bool = False
    strict: bool = False
    timeout_s: float = 0.0
    tokens: tuple[str, str] | None = field(default=None, repr=False)
    draft: str = ""

    @property
    def expected(self) -> tuple[str, str]:
        """Algorithm and digits of the checksum that was given; digits are empty for an algorithm alone."""
        algorithm, _, digits = (self.checksum or "adler32").partition(":")
        return algorithm.lower(), digits.lower().lstrip("0")

    def source_fault(self, digits: str) -> FailureReason | None:
        """The failure if the checksum of the source, with these digits, is not the one that the user gave."""
        algorithm, given = self.expected
        if not given or digits.lstrip("0") == given:
            return None
        text = f"Source and user-defined {algorithm} checksum do not match ({digits} != {given:>08})"
        return FailureReason(FailureScope.SOURCE, errno.EIO, text)

    def destination_fault(self, digits: str, source: str | None) -> FailureReason | None:
        """The failure if the checksum of the destination is neither the user's nor the source's."""
        algorithm, given = self.expected
        expected = given or (source or "").lstrip("0")
        if (not expected and source is None) or digits.lstrip("0") == expected:
            return None
        whose = "User-defined" if given else "Source"
        text = f"{whose} and destination {algorithm} checksum do not match ({expected:>08} != {digits})"
        return FailureReason(FailureScope.DESTINATION, errno.EIO, text)


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """How a copy ended."""

    file_id: int
    failure: FailureReason | None = None
    size: int = 0
    checksum: str | None = None


class Copier(Protocol):
    """Copies files of some schemes. Its methods return at once and are called by one thread."""

    def start(self, order: CopyOrder, now: float) -> None:
        """Begin a copy."""

    def cancel(self, file_id: int) -> None:
        """End a copy as soon as possible; `ended` does not name it any more."""

    def ended(self, now: float) -> Iterable[CopyEnd]:
        """The copies that have ended since the last call."""

    def clean(self, destination: str, draft: str) -> None:
        """Remove what a copy may have left when it ended with the service."""

    def close(self) -> None:
        """End all copies."""


SOURCE_MISSING = FailureReason(FailureScope.SOURCE, errno.ENOENT, "Result HTTP 404 : File not found  after 1 attempts")
DESTINATION_EXISTS = FailureReason(
    FailureScope.DESTINATION, errno.EEXIST, "Destination file exists and overwrite is not enabled"
)
