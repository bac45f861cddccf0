"""The errors of publishers and their nodes; those of gateways, stores and repositories are defined with these.

NightshiftError
├── PublisherError
│   ├── NotSupported(fqrn, detail)            an operation that this way to publish does not have
│   ├── Lossy(fqrn, detail, loss)             it would lose something on the way; the settings do not allow that
│   ├── WorkReverted(fqrn, detail, revision)  a revision changed what was not leased: others' work may be lost
│   └── NodeError(fqrn, detail)
│       └── NodeConnectionError
│           ├── NodeUnreachable               no answer from the node                                retryable
│           └── NodeLost                      the connection ended in the middle of a command        retryable
└── LeasesLeft(faults)                        leases that were not ended, over several repositories

PathBusy (include/gateway/errors.py)
└── NodeBusy                                  another task of ours is at work on the node            retryable
    └── TransactionOpen                       a transaction that is not ours is open there           retryable

Rows are for what no program tells apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.cvmfs.errors import PrepareAgain
from include.errors import Concern, ErrorRow, NightshiftError
from include.gateway.errors import PathBusy

if TYPE_CHECKING:
    from include.publishers.capabilities import Loss


class PublisherError(NightshiftError):
    """Carries the repository, and the path in it, concerned."""

    code = "publisher-error"

    def __init__(self, fqrn: str, detail: str, *, path: str | None = None) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.path = path


class NotSupported(PublisherError):
    """The table of capabilities refuses the operation; the message names the path and what to do instead."""

    code = "operation-not-supported"


class Lossy(PublisherError):
    """Part of the tree would be lost; the message names the path, what to do, and the setting that allows it.

    ``loss`` is what `allow_lossy` would have to name.
    """

    code = "publication-lossy"

    def __init__(self, fqrn: str, detail: str, *, path: str, loss: Loss) -> None:
        super().__init__(fqrn, detail, path=path)
        self.loss = loss


class WorkReverted(PublisherError):
    """A stock gateway made a ``revision`` that undid the work of others; ours is kept."""

    code = "changes-reverted"

    def __init__(self, fqrn: str, detail: str, *, path: str, revision: int) -> None:
        super().__init__(fqrn, detail, path=path)
        self.revision = revision


class LeasesLeft(NightshiftError):
    """Dead tasks' leases that were not ended, or gateways that did not list theirs; ``faults`` has each with a hint."""

    code = "leases-left"

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class NodeError(PublisherError):
    """Base of the errors of a node; ``hint`` replaces the hint of the class or row."""

    code = "node-error"
    hint = "see the node's last words above"

    def __init__(self, fqrn: str, detail: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(fqrn, f"{detail}; {hint or self.hint}", path=path)


class NodeConnectionError(NodeError):
    """No command was begun, or it is not known what became of it."""

    code = "node-connection-error"
    concern = Concern.NODE


class NodeUnreachable(NodeConnectionError):
    code = "node-unreachable"
    retryable = True
    outage = True
    hint = "start sshd there, or correct host and port in the settings"


class NodeLost(NodeConnectionError):
    code = "node-connection-lost"
    retryable = True
    hint = "the next try checks what the node did, before it does anything again"


class NodeBusy(PathBusy):
    """Another task of ours is at work there: a node has one transaction per repository."""

    code = "node-busy"
    hint = "wait until it ended"
    listed = False


class TransactionOpen(NodeBusy):
    """A transaction that Nightshift did not open is open on the node; Nightshift never aborts it."""

    code = "node-transaction-open"
    hint = "wait until its owner publishes or aborts it, or abort it on the node by hand"


HOST_KEY_UNKNOWN = ErrorRow(
    NodeConnectionError, "host-key-unknown",
    "compare the fingerprint with the node's own, then add the key to that file",
)  # fmt: skip
HOST_KEY_CHANGED = ErrorRow(
    NodeConnectionError, "host-key-changed",
    "find out why: if the node was installed again, replace its line there; else another machine may answer for it",
)  # fmt: skip
KEY_UNUSABLE = ErrorRow(
    NodeConnectionError, "node-key-unusable", "correct `key`, `connection`, `agent` or `known_hosts` in the settings"
)
LOGIN_REFUSED = ErrorRow(
    NodeConnectionError, "node-login-refused",
    "add our public key to the authorized keys of that user, or correct `user` and `key`",
)  # fmt: skip
COMMAND_HUNG = ErrorRow(
    NodeError, "node-command-timeout",
    "check what the node waits for, or raise `time_limit_s`", retryable=True, concern=Concern.NODE,
)  # fmt: skip
"""It took longer than the settings allow, and was ended."""
COMMAND_MISSING = ErrorRow(
    NodeError, "node-command-missing", "install it there, or correct `command` in the settings", concern=Concern.NODE
)
NODE_FULL = ErrorRow(
    NodeError, "node-full", "free space in the spool folder of the node", retryable=True, concern=Concern.NODE
)
PLACE_REFUSED = ErrorRow(
    NodeError, "node-place-mismatch", "check the mount on the node; it differs from the repository's catalogs"
)
"""The destination on the node is not what the catalogs say."""
PATH_REFUSED = ErrorRow(NodeError, "node-path-refused", "reserve the destination first, or choose another one")
"""The lease path's parent is missing, or it is no directory."""
INPUT_REFUSED = ErrorRow(NodeError, "node-request-refused", "correct the repository's configuration on the node")
"""The node refuses the request: layout, template, whitelist."""
OPEN_FAILED = ErrorRow(
    NodeError, "node-transaction-failed", "check the mount and the gateway from the node", retryable=True
)
LEASE_NOT_DROPPED = ErrorRow(
    NodeError, "node-lease-not-dropped",
    "it stays open until the gateway answers; the next try aborts it", retryable=True,
)  # fmt: skip
"""Abort could not give the lease back: the transaction stays open for now."""
NOT_IN_TRANSACTION = ErrorRow(
    NodeError, "node-transaction-missing", "another command ended it; try again", retryable=True
)
FILES_OPEN = ErrorRow(
    NodeError, "node-files-open",
    "end what has files open below the mount, or has its working directory there", retryable=True,
)  # fmt: skip
ANOTHER_PUBLISH = ErrorRow(NodeError, "node-publish-active", "wait until it ended", retryable=True)
WHITELIST_EXPIRED = ErrorRow(
    NodeError, "node-whitelist-expired", "resign the whitelist with the master key", concern=Concern.NODE
)
REPOSITORY_UNAVAILABLE = ErrorRow(
    NodeError, "node-repository-unavailable",
    "check the web server of the repository", retryable=True, concern=Concern.NODE,
)  # fmt: skip
UNKNOWN_REPOSITORY = ErrorRow(
    NodeError, "node-repository-unknown",
    "create or connect the repository on the node (cvmfs_server mkfs), or correct `host`", concern=Concern.NODE,
)  # fmt: skip
NAME_REFUSED = ErrorRow(NodeError, "node-tag-refused", "choose another tag, or remove the one of that name")
LEASE_LOST = ErrorRow(
    NodeError, "node-lease-lost", "raise max_lease_time at the gateway above the time that a tree takes", retryable=True
)
"""It ran out before the publication."""
COMMIT_REFUSED = ErrorRow(NodeError, "node-commit-refused", "see the gateway's log", retryable=True)
KEY_REFUSED = ErrorRow(
    NodeError, "node-key-refused", "compare the node's .gw key file with the gateway's", concern=Concern.NODE
)
"""The gateway does not take the node's key."""
SYNC_FAILED = ErrorRow(NodeError, "node-sync-failed", "check the node's messages on its storage", retryable=True)
"""The node could not make the revision."""
SIGNING_FAILED = ErrorRow(
    NodeError, "node-signing-failed", "check the repository's keys on the node", concern=Concern.NODE
)
NOT_SEEN = ErrorRow(
    NodeError, "node-revision-not-visible", "check the web server, and the caches in front of it", retryable=True
)
"""Published, and readers do not see it yet."""
COMMAND_FAILED = ErrorRow(NodeError, "node-command-failed", retryable=True)
"""Any other exit code."""
PACKED_MISSING = ErrorRow(PrepareAgain, "packed-tree-missing")
"""The tree was packed on another machine, or long ago."""
