"""At work on a node: one of our tasks at a time, whatever it began is ended, and trees are compared.

Two locks on the node. `nightshift.lock` is held by a command that lasts as long as our connection: one task of ours is
at work. `nightshift.work` is held by each command that changes something, until it really ends: after a connection was
cut, the next task waits for what still runs before it checks what was done.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from include.cvmfs.format.dirent import Dirent
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import SPECIALS, Entry, EntryKind, Opener, unpack_xattrs
from include.gateway.errors import PathBusy
from include.publishers.errors import NodeBusy, NodeLost, PublisherError, TransactionOpen
from include.publishers.server.commands import HELD, Commands, Record, SeenNode, Verb, busy, failure
from include.publishers.server.connection import KEPT_LINES, CommandResult, NodeAddress, SshConnection
from include.publishers.server.pack import NodeArchive

_READ_BYTES = 1 << 20
_TYPES = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.DIRECTORY: stat.S_IFDIR,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat.S_IFBLK,
}
OWNER, XATTRS = "owner", "values of extended attributes"
SLIGHT = frozenset({OWNER, XATTRS})


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first thing that differs. One of ``SLIGHT`` in ``what`` means that nothing weightier does."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path or '/'}: {self.what}"


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """Properties to compare: owners, attributes and special bits only if they are kept. ``specials``: these have to be
    there."""

    owners: bool = False
    xattrs: tuple[str, ...] = ()
    mtime_ns: bool = False
    specials: bool = True
    special_bits: bool = False

    def difference(self, tree: Revision, packed: NodeArchive, *, contents: bool) -> FirstDifference | None:
        """Return what differs at the destination, None if it is the same tree. Raises what reading both raises."""
        path, wanted = packed.changeset.destination, packed.changeset.statistics.total
        there = tree.lookup(path)
        if there is None or not there.mountpoint:
            return FirstDifference(path, "does not exist" if there is None else "has no nested catalog")
        found = tree.catalog_at(path).statistics.total
        kinds = ("regular", "dir", "symlink", "special") if self.specials else ("regular", "dir", "symlink")
        for kind in kinds:
            if getattr(found, kind) != getattr(wanted, kind):
                return FirstDifference(
                    path, f"{getattr(found, kind)} entries of kind {kind}, not {getattr(wanted, kind)}"
                )
        if found.file_size != wanted.file_size:
            return FirstDifference(path, f"{found.file_size} bytes in all, not {wanted.file_size}")
        return self._entries(tree, path, packed.entries(self.xattrs), contents=contents)

    def _entries(
        self, tree: Revision, path: str, entries: Iterable[tuple[Entry, Opener | None]], *, contents: bool
    ) -> FirstDifference | None:
        # as many entries of each kind, and each that is wanted is there: then nothing else is
        slight: FirstDifference | None = None
        for entry, opener in entries:
            here = f"{path}/{entry.path}"
            if entry.kind in SPECIALS and not self.specials:
                continue
            if entry.kind is EntryKind.HARDLINK:
                what = _same_file(tree.lookup(here), tree.lookup(f"{path}/{entry.hardlink_to}"))
            else:
                what = self._of(tree.lookup(here), entry)
            if what is None and contents and opener is not None:
                what = _content(tree, here, opener)
            if what in SLIGHT:
                slight = slight or FirstDifference(here, what or "")
            elif what is not None:
                return FirstDifference(here, what)
        return slight

    def _of(self, there: Dirent | None, wanted: Entry) -> str | None:
        if there is None:
            return "is not there"
        if stat.S_IFMT(there.mode) != _TYPES[wanted.kind]:
            return f"is no {wanted.kind.value}"
        if wanted.kind is EntryKind.SYMLINK:
            if there.symlink != wanted.symlink:
                return "leads elsewhere"
        elif (there.mode ^ wanted.mode) & (0o7777 if self.special_bits else 0o777):
            return "has other permissions"
        if wanted.kind is EntryKind.FILE:
            if there.size != wanted.size:
                return f"has {there.size} bytes, not {wanted.size}"
            if there.mtime != wanted.mtime or (self.mtime_ns and (there.mtime_ns or 0) != wanted.mtime_ns):
                return "has another time"
        if self.owners and (there.uid, there.gid) != (wanted.uid, wanted.gid):
            return OWNER
        if self.xattrs and unpack_xattrs(there.xattr) != unpack_xattrs(wanted.xattr):
            return XATTRS
        return None


def _same_file(there: Dirent | None, other: Dirent | None) -> str | None:
    """Two names of one file; on the way it may have become two files."""
    if there is None or other is None:
        return None if there is other else "is not there"
    alike = (there.mode, there.size, there.hash, there.symlink) == (other.mode, other.size, other.hash, other.symlink)
    return None if alike else "is another file"


def _content(tree: Revision, path: str, opener: Opener) -> str | None:
    wanted, found = hashlib.sha256(), hashlib.sha256()
    content = opener()
    try:
        while data := content.read(_READ_BYTES):
            wanted.update(data)
    finally:
        content.close()
    for data in tree.stream(path):
        found.update(data)
    return None if wanted.digest() == found.digest() else "has another content"


log = logging.getLogger(__name__)
OnLease = Callable[[Callable[[], object]], None]

_SHORT_S = 60
_GIVE_UP_WAIT_S = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A publisher node for one repository. ``wait_s``: how long busy paths and other tasks of ours are waited for."""

    address: NodeAddress
    commands: Commands
    wait_s: int

    @property
    def fqrn(self) -> str:
        return self.address.fqrn

    @contextmanager
    def work(self, path: str, *, holder: str, on_lease: OnLease | None = None) -> Iterator[Session]:
        """Be the only one of ours on the node, with no transaction open that we once began.

        ``on_lease`` is called with a function that gives up from outside. Raises NodeBusy and what connecting raises;
        TransactionOpen only where a transaction is begun.
        """
        record = Record(secrets.token_hex(8), holder, path, datetime.now(UTC))
        with SshConnection(self.address) as connection:
            session = Session(self, connection, record)
            if on_lease:
                on_lease(session.give_up)
            held = connection.start(self.commands.hold(self.wait_s), limit_s=_SHORT_S + self.wait_s, quiet=True)
            try:
                if held.first_line(timeout_s=self.wait_s + _SHORT_S) != "held":
                    ended = held.finish()
                    raise failure(
                        self.fqrn, Verb.LOCK, ended.code, ended.lines, path=path, limit_s=self.commands.limit_s
                    )
                session.settle()
                yield session
            finally:
                held.close()


class Session:
    """Commands under the lock. Each that fails raises its error (outcomes)."""

    def __init__(self, node: Node, connection: SshConnection, record: Record) -> None:
        self.node = node
        self.commands = node.commands
        self._connection = connection
        self._record = record

    def run(
        self, verb: Verb, command: list[str], *, feed: Iterable[bytes] = (), quiet: bool = False, keep: int = KEPT_LINES
    ) -> CommandResult:
        """Run it to its end; only code 0 comes back, with the last ``keep`` lines. Raises NodeError, PathBusy."""
        limit_s = self.commands.limit_s
        ended = self._connection.run(command, limit_s=limit_s + self.node.wait_s, feed=feed, quiet=quiet, keep=keep)
        if ended.code:
            raise failure(self.node.fqrn, verb, ended.code, ended.lines, path=self._record.path, limit_s=limit_s)
        return ended

    def look(self) -> SeenNode:
        """Tell whether a transaction is open, and whether it is one of ours."""
        return SeenNode.parse(self.run(Verb.LOOK, self.commands.look(), quiet=True).lines)

    def settle(self) -> None:
        """Wait for what still runs of an earlier task of ours, and abort the transaction that it left behind."""
        wait = self._connection.run(self.commands.settle(self.node.wait_s), limit_s=self.node.wait_s, quiet=True)
        if wait.code == HELD:
            what = "a command of an earlier task of ours is still at work on the node"
            raise busy(NodeBusy, self.node.fqrn, self._record.path, what, self.commands.limit_s)
        seen = self.look()
        if seen.record is not None:
            log.warning(
                "%s: aborting the transaction on %s that %s began at %s and left open",
                self.node.fqrn, seen.record.path or "/", seen.record.holder, f"{seen.record.began:%Y-%m-%d %H:%M:%S}",
            )  # fmt: skip
            self.run(Verb.ABORT, self.commands.abort())
        if seen.record is not None or seen.stale:
            self.run(Verb.LOOK, self.commands.forget(), quiet=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction on the session's path, ours until it is published; aborted if it is left open."""
        self.run(Verb.TRANSACTION, self.commands.transaction(self._record.path, self.node.wait_s, self._record))
        try:
            yield
        except BaseException:
            self.end()
            raise

    def ingest(self, command: list[str]) -> None:
        """Publish or take away by ingest, which opens a transaction of its own; aborted if it leaves it open."""
        if self.look().open:
            raise busy(
                TransactionOpen, self.node.fqrn, self._record.path, "another user has a transaction open on the node",
                self.commands.limit_s,
            )  # fmt: skip
        try:
            self.run(Verb.INGEST, command)
        except (NodeLost, TransactionOpen):
            raise  # an open transaction need not be the one that this ingest began
        except PublisherError:
            if self.look().open:
                self.run(Verb.LOOK, self.commands.claim(self._record), quiet=True)
                self.end()
            raise

    def end(self) -> None:
        """Abort what we began, if it is still open; trouble with that is logged, and the next task tries again."""
        try:
            self._abort(self._connection)
        except NodeLost:
            self.give_up()
        except (PublisherError, PathBusy) as error:
            log.warning("%s: our transaction stays open for now: %s", self.node.fqrn, error)

    def give_up(self) -> None:
        """Abort what we began, over a separate connection; for callers that must do so from outside."""
        try:
            with SshConnection(self.node.address) as connection:
                self._abort(connection)
        except (PublisherError, PathBusy) as error:
            log.warning("%s: our transaction stays open for now: %s", self.node.fqrn, error)

    def _abort(self, connection: SshConnection) -> None:
        there = Session(self.node, connection, self._record)
        with suppress(NodeBusy):
            # what we were interrupted in may come to its end by itself, and well
            there.run(Verb.LOCK, self.commands.settle(_GIVE_UP_WAIT_S), quiet=True)
        seen = there.look()
        if seen.record is not None and seen.record.token == self._record.token:
            log.info("%s: aborting our transaction on %s", self.node.fqrn, self._record.path or "/")
            there.run(Verb.ABORT, self.commands.abort())
            there.run(Verb.LOOK, self.commands.forget(), quiet=True)
