"""Errors of object stores, in one tree; rows that no program distinguishes by class; and what a server's failures mean.

StoreError(message, key)
├── NotFound            no such object
│   └── BucketMissing   nor any other: the bucket itself is not there
├── Conflict            a conditional replace lost: another writer came first
├── Forbidden           credentials missing, wrong or not sufficient
├── Unavailable         429, 5xx, time-out, dropped connection; see ``cause``   (retryable)
├── Unsupported         this store cannot do that (an HTTP store does not write)
├── RequestRejected     the store refused the request for another reason
└── BadKey              a key that is never sent to a store
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from include.errors import Concern, ErrorRow, NightshiftError


class StoreError(NightshiftError):
    """Anything this subject raises on purpose. ``key`` is relative to the store, ``""`` if none in particular."""

    code = "store-error"

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class NotFound(StoreError):
    """There is no object of this key."""

    code = "store-object-not-found"


class BucketMissing(NotFound):
    """There is no bucket of this name, so that nothing can be concluded about the object."""

    code = "store-bucket-missing"


class Conflict(StoreError):
    """The object is not, or no longer, the version that was to be replaced. Read it again and derive from it."""

    code = "store-conflict"


class Forbidden(StoreError):
    """The store does not let these credentials do that. Never retried: trying again locks accounts."""

    code = "store-forbidden"
    concern = Concern.STORE


class Unavailable(StoreError):
    """No answer, or one that asks for a later retry. ``cause``: a status ("503"), "timeout" or "connection".

    ``outage``: the service cannot be reached, and waiting for it is worth while.
    """

    code = "store-unavailable"
    retryable = True
    outage = True
    concern = Concern.STORE

    def __init__(self, message: str, *, key: str, cause: str) -> None:
        super().__init__(message, key=key)
        self.cause = cause


class Unsupported(StoreError):
    """This kind of store, or this server, cannot do what was asked."""

    code = "store-operation-unsupported"


class RequestRejected(StoreError):
    """The store understood the request and refused it for a reason that has no leaf of its own."""

    code = "store-request-rejected"


class BadKey(StoreError):
    """A key that is empty, absolute, too long, has an empty, ``.`` or ``..`` component, a NUL or a backslash."""

    code = "object-key-invalid"


STORE_FULL = ErrorRow(StoreError, "store-full", concern=Concern.STORE)
"""No space left on the device, or the quota of the bucket or user is used up."""
CHECKSUM_MISMATCH = ErrorRow(
    StoreError, "object-checksum-mismatch", "let the source be written again, or correct the sum"
)
"""The bytes to store do not have the SHA-256 that was given."""
OBJECT_TOO_LARGE = ErrorRow(StoreError, "object-too-large", "use the store's own tools, or raise max_bytes of the task")
"""More bytes than a task may hold in memory."""
REPOSITORY_OBJECT = ErrorRow(
    StoreError, "object-of-repository", "change repositories by CvmfsPublishTreeOperator and CvmfsRemoveOperator"
)
"""A key below a repository's own, which only publishers, the gateway and the collector write."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of failure. ``cause`` is the word under which a retry is counted."""

    kind: type[StoreError] | ErrorRow[..., StoreError]
    what: str
    cause: str = ""


NO_BUCKET = Refusal(BucketMissing, "the bucket does not exist; create it, or correct the store's URL")
NO_RANGE = Refusal(RequestRejected, "the object ends before this range")
RANGES_IGNORED = Refusal(Unsupported, "the server does not send ranges")
KEYS = "check the connection's access key and secret"

# S3 error codes are finer than statuses. Sources: Amazon S3's list of error responses; radosgw's and SeaweedFS's own.
BY_CODE: dict[str, Refusal] = {
    "NoSuchBucket": NO_BUCKET,
    "NoSuchKey": Refusal(NotFound, "no such object"),
    "AccessDenied": Refusal(
        Forbidden, "access denied; give this key the permission, in the bucket's policy or the user's"
    ),
    "InvalidAccessKeyId": Refusal(Forbidden, f"the store does not know this access key; {KEYS}"),
    "SignatureDoesNotMatch": Refusal(
        Forbidden, f"the signature does not match; {KEYS}, and that no proxy changes the host"
    ),
    "RequestTimeTooSkewed": Refusal(Forbidden, "this machine's clock and the store's differ too much; set the clock"),
    "ExpiredToken": Refusal(Forbidden, "the credentials have expired; renew them"),
    "AuthorizationHeaderMalformed": Refusal(Forbidden, "the request was signed for another region; correct the region"),
    "PermanentRedirect": Refusal(RequestRejected, "the bucket lives at another endpoint; correct endpoint and region"),
    "QuotaExceeded": Refusal(STORE_FULL, "the quota is used up; raise it or delete what is not needed"),
    "InsufficientStorage": Refusal(STORE_FULL, "no space left; add space or delete what is not needed"),
    "XMinioStorageFull": Refusal(STORE_FULL, "no space left; add space or delete what is not needed"),
    "EntityTooLarge": Refusal(RequestRejected, "the object is larger than the store takes"),
    "KeyTooLongError": Refusal(RequestRejected, "the key is longer than the store takes"),
    "NotImplemented": Refusal(Unsupported, "the store does not implement this request"),
    "MethodNotAllowed": Refusal(Unsupported, "the store does not allow this request"),
    "PreconditionFailed": Refusal(Conflict, "the object is not in the expected state"),
    "ConditionalRequestConflict": Refusal(Unavailable, "a concurrent write is in progress", "409"),
    "OperationAborted": Refusal(Unavailable, "a concurrent write is in progress", "409"),
    "RequestTimeout": Refusal(Unavailable, "the store gave up waiting for the request's body", "timeout"),
    "BadDigest": Refusal(Unavailable, "the bytes that arrived are not those that were sent", "digest"),
    "XAmzContentSHA256Mismatch": Refusal(Unavailable, "the bytes that arrived are not those that were sent", "digest"),
    "SlowDown": Refusal(Unavailable, "the store asks to slow down", "503"),
}

BY_STATUS: dict[int, Refusal] = {
    401: Refusal(Forbidden, f"not authenticated; {KEYS}"),
    403: Refusal(Forbidden, f"forbidden; {KEYS}, and its permissions in the bucket's policy"),
    404: Refusal(NotFound, "no such object"),
    405: Refusal(Unsupported, "the store does not allow this request"),
    408: Refusal(Unavailable, "the store gave up waiting for the request", "timeout"),
    409: Refusal(Unavailable, "a concurrent write is in progress", "409"),
    410: Refusal(NotFound, "no such object any more"),
    412: Refusal(Conflict, "the object is not in the expected state"),
    416: NO_RANGE,
    429: Refusal(Unavailable, "too many requests", "429"),
    501: Refusal(Unsupported, "the store does not implement this request"),
    505: Refusal(Unsupported, "the store does not speak this version of HTTP"),
    507: Refusal(STORE_FULL, "no space left; add space or delete what is not needed"),
}

TIMED_OUT = Refusal(Unavailable, "no answer in time", "timeout")
DROPPED = Refusal(Unavailable, "the connection could not be made or was dropped", "connection")
REDIRECTED = Refusal(RequestRejected, "the store redirects to nowhere; correct endpoint and region")


@dataclass(frozen=True, slots=True)
class ParsedFailure:
    """A client library's error, taken apart."""

    refusal: Refusal
    status: int | None
    code: str | None
    message: str

    def error(self, key: str, where: str) -> StoreError:
        """The error to raise. The message names the object, the store and what to do."""
        message = f"{key or 'the store'} in {where}: {self.refusal.what}"
        details = ", ".join(filter(None, (f"status {self.status}" if self.status else "", self.code, self.message)))
        if details:
            message += f" ({details})"
        if self.refusal.kind is Unavailable:
            return Unavailable(message, key=key, cause=self.refusal.cause)
        return self.refusal.kind(message, key=key)


def read_failure(error: Exception) -> ParsedFailure:
    """Return what an error of obstore means, from its text: it carries status and S3 code nowhere else."""
    text = str(error)
    line, _, debug = text.partition("\n\nDebug source:")
    status = int(match[1]) if (match := _STATUS.search(line)) else None
    code = (match[1] or match[2]) if (match := _CODE.search(line)) else None
    message = match[1].strip()[:200] if (match := _MESSAGE.search(line)) else ""
    if code in BY_CODE:
        return ParsedFailure(BY_CODE[code], status, code, message)
    if status is not None:
        refusal = BY_STATUS.get(status)
        if refusal is None and status >= 500:
            refusal = Refusal(Unavailable, "the store has an internal problem", str(status))
        return ParsedFailure(
            refusal or Refusal(RequestRejected, "the store refused the request"), status, code, message
        )
    if "TimedOut" in debug or "Timeout" in debug or "timed out" in line:
        return ParsedFailure(TIMED_OUT, None, None, "")
    if "Range request not supported" in line:
        return ParsedFailure(RANGES_IGNORED, None, None, "")
    if "StartTooLarge" in debug:
        return ParsedFailure(NO_RANGE, None, None, "")
    if "redirect without LOCATION" in line:
        return ParsedFailure(REDIRECTED, None, None, "")
    if "HTTP error" in line or "reqwest" in debug or "hyper" in debug:
        return ParsedFailure(DROPPED, None, None, _innermost(debug))
    if isinstance(error, FileNotFoundError):
        return ParsedFailure(BY_STATUS[404], None, None, "")
    return ParsedFailure(Refusal(RequestRejected, "the request failed"), None, None, line[:300])


def os_failure(error: OSError, key: str, url: str, *, reading: bool = False) -> StoreError:
    """Return what the operating system's refusal of a request to a file store means."""
    where = f"{key or 'the store'} in {url}"
    number = error.errno
    if number == errno.ENOENT or (reading and number in (errno.EISDIR, errno.ENOTDIR)):
        return NotFound(f"{where}: no such object", key=key)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return STORE_FULL(f"{where}: {error.strerror}; free space or raise the quota, then run again", key=key)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Forbidden(f"{where}: {error.strerror}; give this user write permission on the folder", key=key)
    if number == errno.ENAMETOOLONG:
        return BadKey(f"{where}: a component is longer than the file system allows", key=key)
    if number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return RequestRejected(f"{where}: {error.strerror}; a key cannot be an object and a folder at once", key=key)
    if number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE):
        return Unavailable(f"{where}: {error.strerror}", key=key, cause=errno.errorcode[number])
    return RequestRejected(f"{where}: {error.strerror or error}", key=key)


def _innermost(debug: str) -> str:
    words: list[str] = _DETAIL.findall(debug)
    return words[-1] if words else ""


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>|\(code: ([A-Za-z0-9]+)\)")  # the other one: of a key of many
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_DETAIL = re.compile(r'(?:message|error): "?([A-Za-z][^",\n]*)')
