"""What a gateway's answers mean, as one tree, and the table that maps reasons on the wire to its leaves.

GatewayError
├── GatewayUnreachable      no connection, nothing was sent                              retryable
├── ReplyLost               sent, but the connection ended before the reply               retryable
│   └── CommitUnclear       the same for a commit: it may have been published             retryable
├── ServerTrouble           HTTP 5xx                                                      retryable
│   └── StateTrouble        the gateway's own database is locked or broken                retryable
├── UnexpectedReply         not this protocol, or a malformed request (HTTP 4xx)
├── PathBusy                an overlapping lease is held                                  retryable
├── RepositoryDisabled      the administrator stopped new leases                          retryable
├── AccessRefused
│   ├── BadSignature        unknown key id or wrong secret
│   ├── KeyNotAllowed       the key is not one of this repository
│   ├── PathNotAllowed      the key is limited to another path
│   └── AdminKeyNeeded      the call needs an administrator's key
├── BadRequest
│   ├── UnknownRepository   the gateway does not serve it
│   ├── BadLeasePath        the lease path is malformed
│   ├── IncompatibleVersion the gateway speaks another version
│   └── NotOffered          this gateway has no such call (renewal)
├── LeaseLost               unknown, dropped or expired token                             retryable
│   ├── LeaseSpent          a stock gateway restarted, or an earlier commit failed        retryable
│   └── LeaseEnding         too little of it is left for a commit, and it is not renewed  retryable
└── CommitFailed
    ├── MergeFailed         the change does not apply to the current revision
    ├── BaseMoved           the destination is not what the change was derived from       retryable
    ├── ManifestMoved       other writers kept winning the switch                         retryable
    ├── ReflogMissing       the repository's reference log is absent or does not match
    ├── CollectionMoved     a collection went on since the change was judged              retryable
    ├── TagRefused          the tag cannot be made: taken, or not a name for one
    ├── RootMissing         a root hash of the commit cannot be read                      retryable
    ├── ReceiverFailed      the receiver broke off; the change may have been published    retryable
    └── StorageFailed       the gateway could not write to the repository's store         retryable

``retryable`` says whether the publication may be tried again from a new acquire on; the lease at hand is dropped first.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from include.errors import Concern, NightshiftError

if TYPE_CHECKING:
    from include.gateway.client.values import LeaseInfo

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
    outage = False  # the next try looks at once whether it was published
    hint = "read the manifest: the change may have been published"


class ServerTrouble(GatewayError):
    code = "gateway-failed"
    retryable = True
    outage = True
    concern = Concern.GATEWAY


class StateTrouble(ServerTrouble):
    code = "gateway-state-failed"
    hint = "try again; if it stays, look at the disk and the log of the gateway"


class UnexpectedReply(GatewayError):
    code = "unexpected-reply"
    hint = "check that the URL is the one of a CernVM-FS gateway"
    concern = Concern.GATEWAY


class PathBusy(GatewayError):
    """An overlapping lease is held: by ``holder``, if that is known; ``own``: it is our own."""

    code = "path-busy"
    retryable = True
    hint = "wait until it is released"

    def __init__(
        self,
        message: str,
        *,
        time_remaining_s: float = 0.0,
        holder: LeaseInfo | None = None,
        own: bool = False,
        repository: str | None = None,
        path: str | None = None,
        key_id: str | None = None,
        reason: str | None = None,
        trace: str | None = None,
    ) -> None:
        super().__init__(message, repository=repository, path=path, key_id=key_id, reason=reason, trace=trace)
        self.time_remaining_s = time_remaining_s
        self.holder = holder
        self.own = own


class RepositoryDisabled(GatewayError):
    code = "repository-disabled"
    retryable = True
    hint = "wait until the gateway's administrator enables it again"
    concern = Concern.GATEWAY


class AccessRefused(GatewayError):
    code = "access-refused"
    hint = "correct the gateway connection's key"
    concern = Concern.GATEWAY


class BadSignature(AccessRefused):
    code = "request-signature-invalid"
    hint = "compare key id and secret of the connection with the gateway's .gw key file"


class KeyNotAllowed(AccessRefused):
    code = "key-not-allowed"
    hint = "add the key to the repository on the gateway, or use one of its keys"


class PathNotAllowed(AccessRefused):
    code = "path-not-allowed"
    hint = "publish below the key's path, or use another key"


class AdminKeyNeeded(AccessRefused):
    code = "admin-key-required"
    hint = "use a key that the gateway's configuration marks as admin"


class BadRequest(GatewayError):
    code = "request-invalid"
    hint = "correct the request"


class UnknownRepository(BadRequest):
    code = "unknown-repository"
    hint = "check the repository's name against GET /repos of the gateway"


class BadLeasePath(BadRequest):
    code = "lease-path-invalid"
    hint = "a lease path is <repository>/<path>, without empty, '.' or '..' components"


class IncompatibleVersion(BadRequest):
    code = "incompatible-version"
    hint = "use a gateway of CernVM-FS 2.5 or newer"
    concern = Concern.GATEWAY


class NotOffered(BadRequest):
    code = "call-not-offered"
    hint = "do without this call: the gateway does not have it"


class LeaseLost(GatewayError):
    code = "lease-lost"
    retryable = True
    hint = "take a new lease and derive the change again from the current revision"


class LeaseSpent(LeaseLost):
    code = "lease-spent"
    hint = "drop the lease and start again with a new one"


class LeaseEnding(LeaseLost):
    code = "lease-ending"
    hint = "take a new lease; if that happens again, let the gateway give longer ones (max_lease_time)"


class CommitFailed(GatewayError):
    code = "commit-failed"
    hint = "drop the lease; see the gateway's log"


class MergeFailed(CommitFailed):
    code = "commit-merge-conflict"
    hint = "derive the change again from the current revision"


class BaseMoved(CommitFailed):
    code = "commit-base-changed"
    retryable = True
    hint = "derive the change again from the current revision"


class ManifestMoved(CommitFailed):
    code = "commit-manifest-conflict"
    retryable = True
    hint = "try again"
    concern = Concern.GATEWAY


class CollectionMoved(CommitFailed):
    code = "commit-generation-changed"
    retryable = True
    hint = "compare the change's objects with the collection's list again, then commit again"


class TagRefused(CommitFailed):
    code = "commit-tag-refused"
    hint = "choose another tag, or remove the one of that name"


class ReflogMissing(CommitFailed):
    code = "commit-reflog-missing"
    hint = "repair the repository's reference log on the gateway, then try again"
    concern = Concern.GATEWAY


class RootMissing(CommitFailed):
    code = "commit-root-missing"
    retryable = True
    hint = "upload the catalogs again on the current revision, then commit"


class ReceiverFailed(CommitFailed):
    code = "commit-receiver-failed"
    retryable = True
    hint = "read the manifest (the change may have been published), drop the lease and start again"
    concern = Concern.GATEWAY


class StorageFailed(CommitFailed):
    code = "commit-storage-failed"
    retryable = True
    hint = "look at the repository's store, then try again"
    concern = Concern.GATEWAY


class _Match(Enum):
    EXACT = "exact"
    PREFIX = "prefix"
    CONTAINS = "contains"

    def fits(self, pattern: str, reason: str) -> bool:
        if self is _Match.EXACT:
            return reason == pattern
        return reason.startswith(pattern) if self is _Match.PREFIX else pattern in reason


# Both spellings are listed: those that the manual documents and those that the server sends. The first fit counts.
REASONS: tuple[tuple[_Match, str, type[GatewayError]], ...] = (
    (_Match.EXACT, "path_busy", PathBusy),
    (_Match.EXACT, "invalid_hmac", BadSignature),
    (_Match.EXACT, "invalid_authorization_header", BadSignature),
    (_Match.EXACT, "invalid_key", KeyNotAllowed),
    (_Match.EXACT, "authorization error: invalid_key", KeyNotAllowed),
    (_Match.EXACT, "invalid_path", PathNotAllowed),
    (_Match.EXACT, "authorization error: invalid_path", PathNotAllowed),
    (_Match.EXACT, "invalid_repo", UnknownRepository),
    (_Match.EXACT, "authorization error: invalid_repo", UnknownRepository),
    (_Match.PREFIX, "repository not found", UnknownRepository),
    (_Match.EXACT, "repo_disabled", RepositoryDisabled),
    (_Match.EXACT, "no_admin_key", AdminKeyNeeded),
    (_Match.EXACT, "input has leading slash", BadLeasePath),
    (_Match.EXACT, "missing repository name or subpath", BadLeasePath),
    (_Match.PREFIX, "invalid lease path", BadLeasePath),
    (_Match.PREFIX, "path_violation", BadLeasePath),
    (_Match.PREFIX, "incompatible request version", IncompatibleVersion),
    (_Match.EXACT, "invalid lease", LeaseLost),
    (_Match.EXACT, "invalid_token", LeaseLost),
    (_Match.EXACT, "lease_expired", LeaseLost),
    (_Match.PREFIX, "could not obtain statistics counters", LeaseSpent),
    (_Match.PREFIX, "could not begin transaction", StateTrouble),
    (_Match.CONTAINS, "database is locked", StateTrouble),
    (_Match.PREFIX, "merge_error", MergeFailed),
    (_Match.PREFIX, "missing_reflog", ReflogMissing),
    (_Match.PREFIX, "base_mismatch", BaseMoved),
    (_Match.PREFIX, "manifest_conflict", ManifestMoved),
    (_Match.PREFIX, "generation_moved", CollectionMoved),
    (_Match.PREFIX, "unknown_root", RootMissing),
    (_Match.PREFIX, "storage_error", StorageFailed),
    (_Match.EXACT, "repository_owned", StorageFailed),
    (_Match.EXACT, "uploader_error", StorageFailed),
    (_Match.EXACT, "other_error", StorageFailed),
    (_Match.PREFIX, "runtime error", ReceiverFailed),
    (_Match.PREFIX, "worker '", ReceiverFailed),
    (_Match.PREFIX, "miscellaneous: tag", TagRefused),
    (_Match.EXACT, "miscellaneous", CommitFailed),
    (_Match.PREFIX, "invalid ", BadRequest),
)


def leaf_of(reason: str) -> type[GatewayError]:
    """The kind of error that a ``reason`` stands for; a text that no row fits is a plain ``GatewayError``."""
    for how, pattern, leaf in REASONS:
        if how.fits(pattern, reason):
            return leaf
    return GatewayError
