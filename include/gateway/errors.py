"""Meaning of a gateway's answers, as one tree, and the tables that map reasons on the wire to its classes and rows.

GatewayError
├── GatewayUnreachable      no connection, nothing was sent                              retryable
├── ReplyLost               sent, but the connection ended before the reply               retryable
│   └── CommitUnclear       the same for a commit: it may have been published             retryable
├── PathBusy                an overlapping lease is held                                  retryable
├── RepositoryDisabled      the administrator stopped new leases                          retryable
├── AccessRefused           the key is not good enough
│   └── AdminKeyNeeded      the call needs an administrator's key
├── BadLeasePath            the lease path is malformed
├── NotOffered              this gateway has no such call (renewal)
├── LeaseLost               unknown, dropped or expired token                             retryable
├── CollectionFailed        its garbage collection ended with an error, or was refused
└── CommitFailed
    ├── BaseMoved           the destination is not what the change was derived from       retryable
    ├── CollectionMoved     a collection went on since the change was judged              retryable
    └── TagRefused          the tag cannot be made: taken, or not a name for one

``retryable``: whether the publication may be tried again with a new acquire; the lease at hand is dropped first.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from include.errors import Concern, ErrorRow, NightshiftError

if TYPE_CHECKING:
    from include.gateway.client.leases import LeaseInfo

TOKEN_PATTERN = re.compile(r"[A-Z2-7]{52}(?:====|%3[Dd]%3[Dd]%3[Dd]%3[Dd])?")


def redact(text: str) -> str:
    """``text`` without anything that looks like a session token."""
    return TOKEN_PATTERN.sub("<token>", text)


class GatewayError(NightshiftError):
    """A call to a gateway that did not do what was asked; ``reason`` is the gateway's own text, if it sent one."""

    code = "gateway-error"
    hint = "see the gateway's log"

    def __init__(
        self,
        message: str,
        *,
        repository: str | None = None,
        path: str | None = None,
        key_id: str | None = None,
        reason: str | None = None,
        trace: str | None = None,
    ) -> None:
        super().__init__(redact(message))
        self.repository = repository
        self.path = path
        self.key_id = key_id
        self.reason = None if reason is None else redact(reason)
        self.trace = trace


class GatewayUnreachable(GatewayError):
    code = "gateway-unreachable"
    retryable = True
    outage = True
    hint = "start the gateway, or correct host and port of the connection"
    concern = Concern.GATEWAY


class ReplyLost(GatewayError):
    code = "reply-lost"
    retryable = True
    outage = True
    hint = "try again; if the lease was granted its path stays busy until it expires"
    concern = Concern.GATEWAY


class CommitUnclear(ReplyLost):
    code = "commit-unclear"
    outage = False  # the next try checks at once whether it was published
    hint = "read the manifest: the change may have been published"


class PathBusy(GatewayError):
    """An overlapping lease is held: by ``holder``, if that is known; ``own``: it is our own."""

    code = "path-busy"
    retryable = True
    hint = "wait until it is released"
    listed = True
    """The gateway's list of leases shows when the path is free."""

    def __init__(
        self,
        message: str,
        *,
        time_remaining_s: float = 0.0,
        holder: LeaseInfo | None = None,
        own: bool = False,
        **about: str | None,
    ) -> None:
        super().__init__(message, **about)
        self.time_remaining_s = time_remaining_s
        self.holder = holder
        self.own = own

    def why_given_up(self, waited_s: float) -> str:
        """Return what is recorded and shown once it was waited for in vain."""
        holder = f"{self.holder.hostname!r} with key {self.holder.key_id}" if self.holder else "an unknown holder"
        return (
            f"{self.repository}{self.path or '/'} stayed busy for {waited_s:.0f} s, held by {holder}. "
            "Let that holder finish, or have an administrator of the gateway end its lease; then clear this task."
        )


class RepositoryDisabled(GatewayError):
    code = "repository-disabled"
    retryable = True
    hint = "wait until the gateway's administrator enables it again"
    concern = Concern.GATEWAY


class AccessRefused(GatewayError):
    code = "access-refused"
    hint = "correct the gateway connection's key"
    concern = Concern.GATEWAY


class AdminKeyNeeded(AccessRefused):
    code = "admin-key-required"
    hint = "use a key that the gateway's configuration marks as admin"


class BadLeasePath(GatewayError):
    code = "lease-path-invalid"
    hint = "a lease path is <repository>/<path>, without empty, '.' or '..' components"


class NotOffered(GatewayError):
    code = "call-not-offered"
    hint = "do without this call: the gateway does not have it"


class LeaseLost(GatewayError):
    code = "lease-lost"
    retryable = True
    hint = "take a new lease and derive the change again from the current revision"


class CollectionFailed(GatewayError):
    """The gateway does not report why: an active lease, a repository that is not collectable, a run that failed."""

    code = "gateway-collection-failed"
    hint = "run `cvmfs_server gc -f` on the gateway's machine by hand, and read its output"
    concern = Concern.GATEWAY


class CommitFailed(GatewayError):
    code = "commit-failed"
    hint = "drop the lease; see the gateway's log"


class BaseMoved(CommitFailed):
    code = "commit-base-changed"
    retryable = True
    hint = "derive the change again from the current revision"


class CollectionMoved(CommitFailed):
    code = "commit-generation-changed"
    retryable = True
    hint = "publish it again; what the collection deletes is then sent again"


class TagRefused(CommitFailed):
    code = "commit-tag-refused"
    hint = "choose another tag, or remove the one of that name"


UNEXPECTED_REPLY = ErrorRow(
    GatewayError, "unexpected-reply", "check that the URL is the one of a CernVM-FS gateway", concern=Concern.GATEWAY
)
GATEWAY_FAILED = ErrorRow(GatewayError, "gateway-failed", retryable=True, outage=True, concern=Concern.GATEWAY)
"""HTTP 5xx."""
NOT_SWITCHED = ErrorRow(
    GatewayError, "gateway-repository-not-switched",
    "see the gateway's log; a restart of the gateway enables all repositories", concern=Concern.GATEWAY,
)  # fmt: skip
"""The gateway replied ok, but the repository is still enabled or disabled as before."""
COLLECTION_UNCLEAR = ErrorRow(
    GatewayError, "gateway-collection-unclear",
    "see on the gateway's machine whether `cvmfs_server gc` still runs, before it is collected again",
    concern=Concern.GATEWAY,
)  # fmt: skip
"""The reply to a collection was lost, and it did not come to its end in time."""
STATE_FAILED = ErrorRow(
    GatewayError, "gateway-state-failed", "try again; if it stays, check the disk and the log of the gateway",
    retryable=True, outage=True, concern=Concern.GATEWAY,
)  # fmt: skip
"""Its own database is locked or broken."""

BAD_REQUEST = ErrorRow(GatewayError, "request-invalid", "correct the request")
UNKNOWN_REPOSITORY = ErrorRow(
    GatewayError, "unknown-repository", "check the repository's name against GET /repos of the gateway"
)
INCOMPATIBLE_VERSION = ErrorRow(
    GatewayError, "incompatible-version", "use a gateway of CernVM-FS 2.5 or newer", concern=Concern.GATEWAY
)

BAD_SIGNATURE = ErrorRow(
    AccessRefused, "request-signature-invalid",
    "compare key id and secret of the connection with the gateway's .gw key file",
)  # fmt: skip
KEY_NOT_ALLOWED = ErrorRow(
    AccessRefused, "key-not-allowed", "add the key to the repository on the gateway, or use one of its keys"
)
PATH_NOT_ALLOWED = ErrorRow(AccessRefused, "path-not-allowed", "publish below the key's path, or use another key")

LEASE_SPENT = ErrorRow(LeaseLost, "lease-spent", "drop the lease and start again with a new one")
"""A stock gateway restarted, or an earlier commit failed."""
LEASE_ENDING = ErrorRow(
    LeaseLost, "lease-ending",
    "take a new lease; if that happens again, let the gateway give longer ones (max_lease_time)",
)  # fmt: skip
"""Too little of it is left for a commit, and it is not renewed."""
SEALED_LEASE_UNREADABLE = ErrorRow(
    LeaseLost, "sealed-lease-unreadable",
    "use the connection that the lease was taken with; if its key was changed meanwhile, clear the task that takes it",
    retryable=False,
)  # fmt: skip
"""A lease that an earlier task left for those after it is not of this key, or is no lease."""

MERGE_FAILED = ErrorRow(CommitFailed, "commit-merge-conflict", "derive the change again from the current revision")
MANIFEST_MOVED = ErrorRow(
    CommitFailed, "commit-manifest-conflict", "try again", retryable=True, concern=Concern.GATEWAY
)
"""Other writers kept winning the switch."""
REFLOG_MISSING = ErrorRow(
    CommitFailed, "commit-reflog-missing", "repair the repository's reference log on the gateway, then try again",
    concern=Concern.GATEWAY,
)  # fmt: skip
HEAD_DAMAGED = ErrorRow(
    CommitFailed, "commit-head-damaged", "mend the repository as the reason says, then try again",
    concern=Concern.GATEWAY,
)  # fmt: skip
ROOT_MISSING = ErrorRow(
    CommitFailed, "commit-root-missing", "upload the catalogs again on the current revision, then commit",
    retryable=True,
)  # fmt: skip
RECEIVER_FAILED = ErrorRow(
    CommitFailed, "commit-receiver-failed",
    "read the manifest (the change may have been published), drop the lease and start again",
    retryable=True, concern=Concern.GATEWAY,
)  # fmt: skip
STORAGE_FAILED = ErrorRow(
    CommitFailed, "commit-storage-failed", "check the repository's store, then try again",
    retryable=True, concern=Concern.GATEWAY,
)  # fmt: skip

GatewayErrorKind = type[GatewayError] | ErrorRow[..., GatewayError]


class _Match(Enum):
    EXACT = "exact"
    PREFIX = "prefix"
    CONTAINS = "contains"

    def fits(self, pattern: str, reason: str) -> bool:
        if self is _Match.EXACT:
            return reason == pattern
        return reason.startswith(pattern) if self is _Match.PREFIX else pattern in reason


# Both spellings are listed: those that the manual documents and those that the server sends. The first fit counts.
REASONS: tuple[tuple[_Match, str, GatewayErrorKind], ...] = (
    (_Match.EXACT, "path_busy", PathBusy),
    (_Match.EXACT, "invalid_hmac", BAD_SIGNATURE),
    (_Match.EXACT, "invalid_authorization_header", BAD_SIGNATURE),
    (_Match.EXACT, "invalid_key", KEY_NOT_ALLOWED),
    (_Match.EXACT, "authorization error: invalid_key", KEY_NOT_ALLOWED),
    (_Match.EXACT, "invalid_path", PATH_NOT_ALLOWED),
    (_Match.EXACT, "authorization error: invalid_path", PATH_NOT_ALLOWED),
    (_Match.EXACT, "invalid_repo", UNKNOWN_REPOSITORY),
    (_Match.EXACT, "authorization error: invalid_repo", UNKNOWN_REPOSITORY),
    (_Match.PREFIX, "repository not found", UNKNOWN_REPOSITORY),
    (_Match.EXACT, "repo_disabled", RepositoryDisabled),
    (_Match.PREFIX, "exit status", CollectionFailed),
    (_Match.PREFIX, "signal: ", CollectionFailed),
    (_Match.EXACT, "no_admin_key", AdminKeyNeeded),
    (_Match.EXACT, "input has leading slash", BadLeasePath),
    (_Match.EXACT, "missing repository name or subpath", BadLeasePath),
    (_Match.PREFIX, "invalid lease path", BadLeasePath),
    (_Match.PREFIX, "path_violation", BadLeasePath),
    (_Match.PREFIX, "incompatible request version", INCOMPATIBLE_VERSION),
    (_Match.EXACT, "invalid lease", LeaseLost),
    (_Match.EXACT, "invalid_token", LeaseLost),
    (_Match.EXACT, "lease_expired", LeaseLost),
    (_Match.PREFIX, "could not obtain statistics counters", LEASE_SPENT),
    (_Match.PREFIX, "could not begin transaction", STATE_FAILED),
    (_Match.CONTAINS, "database is locked", STATE_FAILED),
    (_Match.PREFIX, "merge_error", MERGE_FAILED),
    (_Match.PREFIX, "missing_reflog", REFLOG_MISSING),
    (_Match.PREFIX, "damaged_head", HEAD_DAMAGED),
    (_Match.PREFIX, "base_mismatch", BaseMoved),
    (_Match.PREFIX, "manifest_conflict", MANIFEST_MOVED),
    (_Match.PREFIX, "generation_moved", CollectionMoved),
    (_Match.PREFIX, "unknown_root", ROOT_MISSING),
    (_Match.PREFIX, "storage_error", STORAGE_FAILED),
    (_Match.EXACT, "repository_owned", STORAGE_FAILED),
    (_Match.EXACT, "uploader_error", STORAGE_FAILED),
    (_Match.EXACT, "other_error", STORAGE_FAILED),
    (_Match.PREFIX, "runtime error", RECEIVER_FAILED),
    (_Match.PREFIX, "worker '", RECEIVER_FAILED),
    (_Match.PREFIX, "miscellaneous: tag", TagRefused),
    (_Match.EXACT, "miscellaneous", CommitFailed),
    (_Match.PREFIX, "invalid ", BAD_REQUEST),
)


def kind_of(reason: str) -> GatewayErrorKind:
    """The kind of error that a ``reason`` means; a reason that matches no row is a plain ``GatewayError``."""
    for how, pattern, kind in REASONS:
        if how.fits(pattern, reason):
            return kind
    return GatewayError
