"""What can go wrong with a publisher node, in one tree. Every leaf says whether to try again.

PublisherError
└── ServerError(fqrn, detail)
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

from typing import ClassVar

from include.cvmfs.errors import PrepareAgain
from include.gateway.errors import PathBusy
from include.publishers.errors import PublisherError


class ServerError(PublisherError):
    """Base of what a node does or says; ``cure`` is what whoever reads the message may do."""

    retryable: ClassVar[bool] = False
    cure: ClassVar[str] = "see the node's last words above"

    def __init__(self, fqrn: str, detail: str, *, path: str | None = None, cure: str | None = None) -> None:
        super().__init__(fqrn, f"{detail}; {cure or self.cure}", path=path)


class NodeConnectionError(ServerError):
    """No command was begun, or it is not known what became of it."""


class NodeUnreachable(NodeConnectionError):
    retryable = True
    outage: ClassVar[bool] = True
    cure = "start sshd there, or correct host and port in the settings"


class NodeLost(NodeConnectionError):
    retryable = True
    cure = "the next try looks at what the node did, before it does anything again"


class HostKeyUnknown(NodeConnectionError):
    cure = "compare the fingerprint with the node's own, then add the key to that file"


class HostKeyChanged(NodeConnectionError):
    cure = "find out why: if the node was installed anew, replace its line there, else somebody is in between"


class KeyUnusable(NodeConnectionError):
    cure = "correct `key`, `connection`, `agent` or `known_hosts` in the settings"


class LoginRefused(NodeConnectionError):
    cure = "add our public key to the authorized keys of that user, or correct `user` and `key`"


class CommandHung(ServerError):
    retryable = True
    cure = "look at what the node waits for, or raise `time_limit_s`"


class CommandMissing(ServerError):
    cure = "install it there, or correct `command` in the settings"


class NodeFull(ServerError):
    retryable = True
    cure = "free space in the spool folder of the node"


class PlaceRefused(ServerError):
    cure = "look at the mount on the node; it is not as the repository's catalogs say"


class PathRefused(ServerError):
    cure = "reserve the destination first, or choose another one"


class InputRefused(ServerError):
    cure = "correct the repository's configuration on the node"


class OpenFailed(ServerError):
    retryable = True
    cure = "look at the mount and the gateway from the node"


class LeaseUndropped(ServerError):
    retryable = True
    cure = "it stays open until the gateway answers; the next try aborts it"


class NotInTransaction(ServerError):
    retryable = True
    cure = "somebody ended it; try again"


class FilesOpen(ServerError):
    retryable = True
    cure = "end what has files open below the mount, or has its working directory there"


class AnotherPublish(ServerError):
    retryable = True
    cure = "wait until it ended"


class NodeWhitelistExpired(ServerError):
    cure = "resign the whitelist with the master key"


class RepositoryUnavailable(ServerError):
    retryable = True
    cure = "look at the web server of the repository"


class UnknownOnNode(ServerError):
    cure = "create or connect the repository on the node (cvmfs_server mkfs), or correct `host`"


class NameRefused(ServerError):
    cure = "choose another tag, or remove the one of that name"


class NodeLeaseLost(ServerError):
    retryable = True
    cure = "raise max_lease_time at the gateway above the time that a tree takes"


class CommitRefused(ServerError):
    retryable = True
    cure = "see the gateway's log"


class KeyRefused(ServerError):
    cure = "compare the node's .gw key file with the gateway's"


class SyncFailed(ServerError):
    retryable = True
    cure = "see what the node says of its storage"


class SigningFailed(ServerError):
    cure = "look at the repository's keys on the node"


class NotSeen(ServerError):
    retryable = True
    cure = "look at the web server, and at caches in front of it"


class CommandFailed(ServerError):
    retryable = True


class NodeBusy(PathBusy):
    """Another task of ours is at work there: a node has one transaction per repository."""

    cure = "wait until it ended"


class TransactionOpen(NodeBusy):
    """Somebody who is not Nightshift has a transaction open there; it is never aborted from here."""

    cure = "wait until its owner publishes or aborts it, or abort it on the node by hand"


class PackedMissing(PrepareAgain):
    """The tree was packed on another machine, or long ago."""

    retryable: ClassVar[bool] = True
