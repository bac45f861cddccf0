"""Errors of object stores, in one tree, and rows that no program distinguishes by class.

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
