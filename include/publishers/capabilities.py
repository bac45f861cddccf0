"""Abilities of each way to publish: one table, which the publishers ask and docs/publishers.md shows.

A way is a publisher and what is between it and the repository. An outcome carries its reason and, unless it is
supported, a hint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from include.publishers.errors import Lossy, NotSupported


class PublishRoute(Enum):
    """A publisher with the gateway that it goes through; the value is the heading of its column."""

    NATIVE_OURS = "native × Nightshift's gateway"
    NATIVE_STOCK = "native × stock gateway"
    SERVER_STOCK = "cvmfs-server × stock gateway"
    SERVER_OURS = "cvmfs-server × Nightshift's gateway"
    SERVER_LOCAL = "cvmfs-server, local"


class Operation(Enum):
    """Operation of a publisher, or property of what it publishes; the value is the heading of its row."""

    RESERVE = "reserve the destinations of a build"
    PUBLISH = "publish a tree at a new or reserved destination"
    REPLACE = "put a tree in the place of another"
    REMOVE = "take a tree away"
    RELEASE = "take empty reservations away"
    CHANGE = "change single entries, several in one revision"
    RENAME = "move a tree without sending its data"
    LINK = "set a symbolic link"
    PARALLEL = "publish at several destinations at once"
    RENEW = "renew a lease"
    PUBLISH_TAGGED = "name the new revision in the same step"
    TAG_ADD = "name an existing revision"
    TAG_REMOVE = "take a name away"
    TAG_LIST = "list the names"
    ROLLBACK = "go back to an earlier revision"
    REPAIR = "mend reflog and metadata"
    RECOUNT = "count the counters of catalogs again"
    COLLECT = "collect garbage"
    CHECK = "check the repository"
    TREE_HARD_LINKS = "hard links in a published tree"
    TREE_SPECIALS = "fifos, sockets and devices in a published tree"
    TREE_OWNERS = "a tree of which only owners changed"
    TREE_XATTRS = "a tree of which only values of extended attributes changed"
    TREE_MTIME_NS = "nanoseconds of a published tree"
    ENTRY_HARD_LINKS = "hard links among entries that are changed singly or moved"
    ENTRY_SPECIALS = "fifos, sockets and devices among entries that are changed singly or moved"
    ENTRY_OWNERS = "only the owner of an entry"
    ENTRY_XATTRS = "only values of an entry's extended attributes"


class OperationOutcome(Enum):
    """Verdict on an operation; a lossy one is refused, too, unless the repository's settings allow it."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    LOSSY = "lossy"


class Loss(Enum):
    """Names for `allow_lossy` of a repository: what may get lost on the way, silently, if it is allowed."""

    HARD_LINKS = "hard-links"
    SPECIALS = "specials"
    OWNERS = "owners"
    XATTRS = "xattrs"


@dataclass(frozen=True, slots=True)
class Cell:
    """A decision of the table and its reason. ``cure``: what to do instead, unless it is supported. ``loss``: what is
    lost.
    """

    outcome: OperationOutcome
    reason: str
    cure: str = ""
    loss: Loss | None = None


def cell(way: PublishRoute, operation: Operation) -> Cell:
    """The decision of the table."""
    return TABLE[operation][way]


def require(
    way: PublishRoute, operation: Operation, *, fqrn: str, path: str, allow_lossy: Collection[Loss] = ()
) -> Cell:
    """The table's decision on an operation; repository and path are for the error.

    Raises NotSupported, and Lossy for a loss that ``allow_lossy``, from the repository's settings, does not name.
    """
    found = cell(way, operation)
    what = f"{path or '/'}: {operation.value}: {way.value}"
    if found.outcome is OperationOutcome.REFUSED:
        raise NotSupported(fqrn, f"{what} does not do this: {found.reason}; {found.cure}", path=path)
    if found.outcome is OperationOutcome.LOSSY and found.loss is not None and found.loss not in allow_lossy:
        allowing = f"or allow the loss with `allow_lossy: [{found.loss.value}]` in the repository's settings"
        detail = f"{what} would lose this: {found.reason}; {found.cure}, {allowing}"
        raise Lossy(fqrn, detail, path=path, loss=found.loss)
    return found


def _yes(reason: str) -> Cell:
    return Cell(OperationOutcome.SUPPORTED, reason)


def _no(reason: str, cure: str) -> Cell:
    return Cell(OperationOutcome.REFUSED, reason, cure)


def _lossy(loss: Loss, reason: str, cure: str) -> Cell:
    return Cell(OperationOutcome.LOSSY, reason, cure, loss)


def _row(
    ours: Cell, stock: Cell, server_stock: Cell, server_ours: Cell, server_local: Cell
) -> Mapping[PublishRoute, Cell]:
    return {
        PublishRoute.NATIVE_OURS: ours,
        PublishRoute.NATIVE_STOCK: stock,
        PublishRoute.SERVER_STOCK: server_stock,
        PublishRoute.SERVER_OURS: server_ours,
        PublishRoute.SERVER_LOCAL: server_local,
    }


_SWAP = _yes("the destination's catalog is swapped by its hash")
_EDIT = _yes("the revision's catalogs are edited and merged")
_TRANSACTION = _yes("one transaction on the node")
_SIGNED_HERE = _yes("by who holds the signing key: `nightshift repo`")
_BY_GATEWAY = _yes("the gateway's own `/gc`, with its administrator's key: `nightshift repo gc`")
_ONE_AT_A_TIME = _no("a node has one open transaction per repository", "the others wait for it; add nodes")
_NO_EDIT = _no("cvmfs_server works on files and knows no catalogs", "use publisher: native, or do it on the node")
_GATEWAY_TAGS = _no(
    "tags go with a commit only", "name the revision when it is published, or work on the gateway's machine"
)
_GATEWAY_ONLY = _no("only the gateway's machine may write there", "run cvmfs_server on the gateway's machine")
_GATEWAY_REFLOG = _no("its receiver compares the reflog with its own file", "run `cvmfs_server check -r` there")
_BY_KEY = _no("only who holds the signing key may", "run `nightshift repo repair` on the gateway's machine")
_GATEWAY_COUNTS = _no("its receiver compares the reflog with its own file", "run `cvmfs_server fix-stats` there")
_WITHOUT_NS = "use publisher: native through Nightshift's gateway, or remove `prepare.mtime_ns`"
_NO_NS = _no("stock publishers up to 2.11 write no nanoseconds", _WITHOUT_NS)
_STOCK_ENTRIES = "the stock receiver merges single entries, and"
_SERVER_TREES = "the stock receiver takes what is new entry by entry, and"

TABLE: Mapping[Operation, Mapping[PublishRoute, Cell]] = {
    Operation.RESERVE: _row(
        _yes("one commit with an empty nested catalog at every destination"),
        _yes("one commit; the lease is on the topmost directory that is missing"),
        _TRANSACTION, _TRANSACTION, _TRANSACTION,
    ),
    Operation.PUBLISH: _row(_SWAP, _SWAP, _TRANSACTION, _TRANSACTION, _TRANSACTION),
    Operation.REPLACE: _row(_SWAP, _SWAP, _TRANSACTION, _TRANSACTION, _TRANSACTION),
    Operation.REMOVE: _row(_EDIT, _EDIT, _TRANSACTION, _TRANSACTION, _TRANSACTION),
    Operation.RELEASE: _row(_EDIT, _EDIT, _TRANSACTION, _TRANSACTION, _TRANSACTION),
    Operation.CHANGE: _row(_EDIT, _EDIT, _NO_EDIT, _NO_EDIT, _NO_EDIT),
    Operation.RENAME: _row(_EDIT, _EDIT, _NO_EDIT, _NO_EDIT, _NO_EDIT),
    Operation.LINK: _row(_EDIT, _EDIT, _NO_EDIT, _NO_EDIT, _NO_EDIT),
    Operation.PARALLEL: _row(
        _yes("leases on different paths, commits in groups"),
        _yes("leases on different paths, one commit after another"),
        _ONE_AT_A_TIME, _ONE_AT_A_TIME, _ONE_AT_A_TIME,
    ),
    Operation.RENEW: _row(
        _yes("at a third of its lifetime"),
        _no("stock gateways of 2.11 have no such call", "raise max_lease_time at the gateway; commits take seconds"),
        _no("cvmfs_server does not renew", "raise max_lease_time at the gateway above the time that a tree takes"),
        _no("cvmfs_server does not renew", "raise max_lease_time at the gateway above the time that a tree takes"),
        _no("there are no leases without a gateway", "nothing has to be done: a transaction does not expire"),
    ),
    Operation.PUBLISH_TAGGED: _row(
        _yes("the commit carries the tag"), _yes("the commit carries the tag"),
        _yes("`publish -a`, the commit carries the tag"), _yes("`publish -a`, the commit carries the tag"),
        _yes("`publish -a`"),
    ),
    Operation.TAG_ADD: _row(_SIGNED_HERE, _GATEWAY_TAGS, _GATEWAY_TAGS, _GATEWAY_TAGS, _yes("`tag -a`")),
    Operation.TAG_REMOVE: _row(_SIGNED_HERE, _GATEWAY_TAGS, _GATEWAY_TAGS, _GATEWAY_TAGS, _yes("`tag -r`")),
    Operation.TAG_LIST: _row(
        _yes("read from the repository"), _yes("read from the repository"),
        _yes("`tag -l -x`"), _yes("`tag -l -x`"), _yes("`tag -l -x`"),
    ),
    Operation.ROLLBACK: _row(
        _SIGNED_HERE, _GATEWAY_ONLY, _GATEWAY_ONLY, _GATEWAY_ONLY,
        _no("going back takes what others published since", "run cvmfs_server rollback on the node by hand"),
    ),
    Operation.REPAIR: _row(
        _SIGNED_HERE, _GATEWAY_REFLOG, _GATEWAY_REFLOG,
        _BY_KEY, _no("its checksum is on the node", "run `cvmfs_server check -r` on the node"),
    ),
    Operation.RECOUNT: _row(
        _SIGNED_HERE, _GATEWAY_COUNTS, _GATEWAY_COUNTS,
        _BY_KEY, _no("its checksum is on the node", "run `cvmfs_server fix-stats` on the node"),
    ),
    Operation.COLLECT: _row(_SIGNED_HERE, _BY_GATEWAY, _BY_GATEWAY, _SIGNED_HERE, _yes("`gc -f` on the node")),
    Operation.CHECK: _row(
        _yes("`nightshift repo check`"), _yes("`nightshift repo check`"), _yes("`check`"), _yes("`check`"),
        _yes("`check`"),
    ),
    Operation.TREE_HARD_LINKS: _row(
        _SWAP, _SWAP,
        _lossy(Loss.HARD_LINKS, f"{_SERVER_TREES} makes them separate files", "pack the tree without hard links"),
        _yes("the merge keeps them"), _yes("cvmfs_server keeps them"),
    ),
    Operation.TREE_SPECIALS: _row(
        _SWAP, _SWAP,
        _lossy(Loss.SPECIALS, f"{_SERVER_TREES} leaves them out", "pack the tree without them, or `specials: skip`"),
        _yes("the merge keeps them"), _yes("cvmfs_server keeps them"),
    ),
    Operation.TREE_OWNERS: _row(
        _SWAP, _SWAP,
        _lossy(Loss.OWNERS, "the stock receiver does not compare owners", "change a file of the tree, too"),
        _yes("the merge compares owners"), _yes("cvmfs_server compares owners"),
    ),
    Operation.TREE_XATTRS: _row(
        _SWAP, _SWAP,
        _lossy(Loss.XATTRS, "the stock receiver does not compare their values", "change a file of the tree, too"),
        _yes("the merge compares their values"), _yes("cvmfs_server compares their values"),
    ),
    Operation.TREE_MTIME_NS: _row(
        _yes("in a repository that was created with --mtime-ns"),
        _no("stock receivers up to 2.11 write no nanoseconds", _WITHOUT_NS),
        _NO_NS, _NO_NS, _NO_NS,
    ),
    Operation.ENTRY_HARD_LINKS: _row(
        _EDIT,
        _lossy(Loss.HARD_LINKS, f"{_STOCK_ENTRIES} makes separate files of them", "publish their whole tree again"),
        _NO_EDIT, _NO_EDIT, _NO_EDIT,
    ),
    Operation.ENTRY_SPECIALS: _row(
        _EDIT,
        _lossy(Loss.SPECIALS, f"{_STOCK_ENTRIES} leaves them out", "publish their whole tree again"),
        _NO_EDIT, _NO_EDIT, _NO_EDIT,
    ),
    Operation.ENTRY_OWNERS: _row(
        _EDIT,
        _lossy(Loss.OWNERS, f"{_STOCK_ENTRIES} does not compare owners", "publish the whole tree again"),
        _NO_EDIT, _NO_EDIT, _NO_EDIT,
    ),
    Operation.ENTRY_XATTRS: _row(
        _EDIT,
        _lossy(Loss.XATTRS, f"{_STOCK_ENTRIES} does not compare their values", "publish the whole tree again"),
        _NO_EDIT, _NO_EDIT, _NO_EDIT,
    ),
}  # fmt: skip
