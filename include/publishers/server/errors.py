"""What can go wrong with a publisher node, in one tree. Every leaf says whether to try again.

PublisherError
└── NodeError(fqrn, detail)
    ├── NodeConnectionError
    │   ├── NodeUnreachable       nobody answers there                                          retryable
    │   ├── NodeLost              the connection ended in the middle of a command               retryable
    │   ├── HostKeyUnknown        the node's key is not in the known_hosts file
    │   ├── HostKeyChanged        the node shows another key than the known_hosts file has
    │   ├── KeyUnusable           our key file, agent or known_hosts file cannot be used
    │   └── LoginRefused          the node does not let us in
    ├── CommandHung               a command took longer than the settings allow, and was ended  retryable
    ├── CommandMissing            there is no such program on the node, or it may not be run
    ├── NodeFull                  no space left on the node                                     retryable
    ├── PlaceRefused              the destination on the node is not what the catalogs say
    ├── PathRefused               the lease path's parent is missing, or it is no directory
    ├── InputRefused              the node refuses the request: layout, template, whitelist
    ├── OpenFailed                the transaction could not be opened                           retryable
    ├── LeaseUndropped            abort could not give the lease back: it stays open for now     retryable
    ├── NotInTransaction          somebody ended our transaction                                retryable
    ├── FilesOpen                 somebody has files open below the mount                       retryable
    ├── AnotherPublish            another publish process is active                             retryable
    ├── NodeWhitelistExpired      the whitelist has to be signed again
    ├── RepositoryUnavailable     the node does not reach the repository                        retryable
    ├── UnknownOnNode             the node has no such repository
    ├── NameRefused               a tag that is taken, or no name for one
    ├── NodeLeaseLost             the lease ran out before the publication                      retryable
    ├── CommitRefused             the gateway did not commit                                    retryable
    ├── KeyRefused                the gateway does not take the node's key
    ├── SyncFailed                the node could not make the revision                          retryable
    ├── SigningFailed             the node could not sign it
    ├── NotSeen                   published, and readers do not see it yet                      retryable
    └── CommandFailed             any other exit code, with the node's last words               retryable

PathBusy (include/gateway/errors.py)
├── NodeBusy                      another task of ours is at work on the node                   retryable
└── TransactionOpen               somebody has a transaction open there                         retryable

PrepareAgain (include/cvmfs/errors.py)
└── PackedMissing                 the packed tree is not on this machine                        retryable
"""

from __future__ import annotations

from include.cvmfs.errors import PrepareAgain
from include.errors import Concern
from include.gateway.errors import PathBusy
from include.publishers.errors import PublisherError


class NodeError(PublisherError):
    """Base of what a node does or says; ``hint`` replaces what the class says of what helps."""

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
    hint = "the next try looks at what the node did, before it does anything again"


class HostKeyUnknown(NodeConnectionError):
    code = "host-key-unknown"
    hint = "compare the fingerprint with the node's own, then add the key to that file"


class HostKeyChanged(NodeConnectionError):
    code = "host-key-changed"
    hint = "find out why: if the node was installed anew, replace its line there, else somebody is in between"


class KeyUnusable(NodeConnectionError):
    code = "node-key-unusable"
    hint = "correct `key`, `connection`, `agent` or `known_hosts` in the settings"


class LoginRefused(NodeConnectionError):
    code = "node-login-refused"
    hint = "add our public key to the authorized keys of that user, or correct `user` and `key`"


class CommandHung(NodeError):
    code = "node-command-timeout"
    retryable = True
    hint = "look at what the node waits for, or raise `time_limit_s`"
    concern = Concern.NODE


class CommandMissing(NodeError):
    code = "node-command-missing"
    hint = "install it there, or correct `command` in the settings"
    concern = Concern.NODE


class NodeFull(NodeError):
    code = "node-full"
    retryable = True
    hint = "free space in the spool folder of the node"
    concern = Concern.NODE


class PlaceRefused(NodeError):
    code = "node-place-mismatch"
    hint = "look at the mount on the node; it is not as the repository's catalogs say"


class PathRefused(NodeError):
    code = "node-path-refused"
    hint = "reserve the destination first, or choose another one"


class InputRefused(NodeError):
    code = "node-request-refused"
    hint = "correct the repository's configuration on the node"


class OpenFailed(NodeError):
    code = "node-transaction-failed"
    retryable = True
    hint = "look at the mount and the gateway from the node"


class LeaseUndropped(NodeError):
    code = "node-lease-not-dropped"
    retryable = True
    hint = "it stays open until the gateway answers; the next try aborts it"


class NotInTransaction(NodeError):
    code = "node-transaction-missing"
    retryable = True
    hint = "somebody ended it; try again"


class FilesOpen(NodeError):
    code = "node-files-open"
    retryable = True
    hint = "end what has files open below the mount, or has its working directory there"


class AnotherPublish(NodeError):
    code = "node-publish-active"
    retryable = True
    hint = "wait until it ended"


class NodeWhitelistExpired(NodeError):
    code = "node-whitelist-expired"
    hint = "resign the whitelist with the master key"
    concern = Concern.NODE


class RepositoryUnavailable(NodeError):
    code = "node-repository-unavailable"
    retryable = True
    hint = "look at the web server of the repository"
    concern = Concern.NODE


class UnknownOnNode(NodeError):
    code = "node-repository-unknown"
    hint = "create or connect the repository on the node (cvmfs_server mkfs), or correct `host`"
    concern = Concern.NODE


class NameRefused(NodeError):
    code = "node-tag-refused"
    hint = "choose another tag, or remove the one of that name"


class NodeLeaseLost(NodeError):
    code = "node-lease-lost"
    retryable = True
    hint = "raise max_lease_time at the gateway above the time that a tree takes"


class CommitRefused(NodeError):
    code = "node-commit-refused"
    retryable = True
    hint = "see the gateway's log"


class KeyRefused(NodeError):
    code = "node-key-refused"
    hint = "compare the node's .gw key file with the gateway's"
    concern = Concern.NODE


class SyncFailed(NodeError):
    code = "node-sync-failed"
    retryable = True
    hint = "see what the node says of its storage"


class SigningFailed(NodeError):
    code = "node-signing-failed"
    hint = "look at the repository's keys on the node"
    concern = Concern.NODE


class NotSeen(NodeError):
    code = "node-revision-not-visible"
    retryable = True
    hint = "look at the web server, and at caches in front of it"


class CommandFailed(NodeError):
    code = "node-command-failed"
    retryable = True


class NodeBusy(PathBusy):
    """Another task of ours is at work there: a node has one transaction per repository."""

    code = "node-busy"
    hint = "wait until it ended"


class TransactionOpen(NodeBusy):
    """Somebody who is not Nightshift has a transaction open there; it is never aborted from here."""

    code = "node-transaction-open"
    hint = "wait until its owner publishes or aborts it, or abort it on the node by hand"


class PackedMissing(PrepareAgain):
    """The tree was packed on another machine, or long ago."""

    code = "packed-tree-missing"
