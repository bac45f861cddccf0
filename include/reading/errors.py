"""Errors of reading at a distance.

ReadingError(file, what)
"""

from __future__ import annotations

from enum import Enum

from include.errors import ErrorRow, NightshiftError


class ReadingError(NightshiftError):
    """`file` is the file that it is about."""

    code = "reading-error"

    def __init__(self, file: str, what: str) -> None:
        self.file = file
        super().__init__(f"{file}: {what}." + (f" Hint: {self.hint}." if self.hint else ""))


FILE_CHANGED = ErrorRow(
    ReadingError, "reading-file-changed", "read it from the beginning; what was read before is of another content"
)
"""The file is not the one that it was when it was opened."""
NO_REPLICA = ErrorRow(
    ReadingError, "reading-no-replica", "check the sites in the message; those that failed may be back later",
    retryable=True,
)  # fmt: skip
"""No replica could be read; the message has the reason of each."""
OUTSIDE = ErrorRow(ReadingError, "reading-outside", "ask for bytes below the file's size")
"""Bytes were asked for that the file does not have."""
NO_SHADOW = ErrorRow(ReadingError, "reading-no-shadow-file", "free space in the folder, or name another")
"""No shadow file can be made on the local disk."""


class FailureKind(Enum):
    """The kind of a failed request; the site's health counts them."""

    UNREACHABLE = "unreachable"
    """No connection."""
    SILENT = "silent"
    """No byte in time."""
    CUT = "cut"
    """The connection ended early."""
    BUSY = "busy"
    """The server asks to come back later."""
    MISSING = "missing"
    """There is no such file."""
    REFUSED = "refused"
    """The credential is not accepted, or has ended."""
    DISTRUSTED = "distrusted"
    """TLS failed, as with a certificate that has expired."""
    WRONG = "wrong"
    """The reply is not what was asked for."""
    CHANGED = "changed"
    """The file is another one than before."""

    @property
    def may_pass(self) -> bool:
        """Tell whether the same request may succeed a little later."""
        return self in {FailureKind.UNREACHABLE, FailureKind.SILENT, FailureKind.CUT, FailureKind.BUSY}


class ReplicaFailure(NightshiftError):
    """A request of a replica failed. `why` has no URL and no text of the server."""

    code = "reading-replica-failed"

    def __init__(self, kind: FailureKind, why: str, *, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.kind, self.why, self.wait_s = kind, why, wait_s
