"""Publication by `cvmfs_server` on a node, behind the same interface as the native one (docs/publishers.md).

The repository is always checked first, under the lock of the node: a tree that is already there is not published again,
whichever client published it and however the connection ended. A transaction that was begun is published or aborted.
"""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import BaseChanged, DestinationError, NotReserved, RepositoryError
from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.paths import common_top, is_below, parent_of
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import Entry, EntryKind, checked_destination
from include.publishers import required_objects
from include.publishers.base import PhaseTimes, Published, Released, Reserved, tree_options
from include.publishers.capabilities import Loss, Operation, PublishRoute, require
from include.publishers.errors import NOT_SEEN, SYNC_FAILED, NodeError, NodeLost, NodeUnreachable, NotSupported
from include.publishers.server.commands import Commands, Verb
from include.publishers.server.connection import NodeAddress
from include.publishers.server.maintenance import NodeUpkeep
from include.publishers.server.node import OWNER, SLIGHT, FirstDifference, Node, OnLease, Session, TreeComparison
from include.publishers.server.pack import Lossless, NodeArchive, Packing, member
from include.settings.model import RepositorySettings
from include.settings.secrets import Secrets
from include.settings.services import NodeSettings, SshLogin

log = logging.getLogger(__name__)

CONFIRM_S = 60.0
_POLL_S = (0.05, 2.0)


@dataclass
class _Progress(PhaseTimes):
    """Progress of a publication, over all its attempts. ``before``: the revision that the first one found."""

    before: int | None = None
    sent: bool = False
    held_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPublisher(NodeUpkeep):
    """Publishes to one repository. For arguments, results and errors see `Publisher`; each method may raise NodeError.

    ``archives``: folder of this machine with the trees that were packed for the node. ``compared``: what of a tree is
    kept on the node. ``ingest``: publish new trees by ``cvmfs_server ingest``. ``confirm_s``: how long to wait for
    readers to see a publication.
    """

    archives: Path
    compared: TreeComparison
    ingest: bool = False
    confirm_s: float = CONFIRM_S

    # -- what every publisher offers

    def reserve(
        self,
        destinations: Sequence[str],
        *,
        nested: Sequence[str],
        holder: str,
        now: datetime,
        on_create: Callable[[Sequence[str]], None] | None = None,
    ) -> Reserved:
        """Create the destinations that are absent, as empty nested catalogs, and all directories above them.

        One transaction; none at all when everything is there. ``on_create`` is called while the node is held.
        """
        self.require(Operation.RESERVE, destinations[0] if destinations else "")

        def missing(head: Repository) -> list[str]:
            return required_objects.missing_directories(head.revision, destinations)

        head = self.read()
        wanted = missing(head)
        if not wanted:
            return Reserved(head.manifest.revision, ())
        places = {*destinations, *nested}
        progress, made = _Progress(), list[str]()

        def attempt() -> int:
            with self.node.work(common_top(wanted), holder=holder) as session:
                head = self.read()
                created = missing(head)
                if not created:
                    return head.manifest.revision
                if not all(is_below(path, common_top(wanted)) for path in created):
                    raise BaseChanged(common_top(wanted), "directories above it went away meanwhile; reserve again")
                made[:] = created
                if on_create:
                    on_create(created)
                started = time.monotonic()
                with session.transaction():
                    session.run(Verb.UNPACK, session.commands.unpack(""), feed=_skeleton(created, places, now))
                    self._publish_it(session, progress, None)
                progress.held_s = time.monotonic() - started
                return self._until(head, lambda later: not missing(later), "what was reserved")

        return Reserved(self.repeated(attempt), tuple(made), progress.held_s)

    def publish(
        self,
        changeset: Changeset,
        *,
        holder: str,
        now: datetime,  # noqa: ARG002 - the node's own clock counts
        replace: bool = True,
        tag: NewTag | None = None,
        on_lease: OnLease | None = None,
    ) -> Published:
        """Send the packed tree to the node and publish it there, in a transaction on the destination.

        A destination that holds this very tree is left as it is. Raises NotSupported and Lossy for entries that
        `cvmfs_server` cannot publish, or would lose.
        """
        path = changeset.destination
        if changeset.repository != self.fqrn:
            raise RepositoryError(self.fqrn, f"the changeset for {path} was packed for {changeset.repository!r}")
        self.require(Operation.PUBLISH, path)
        if tag is not None:
            self.require(Operation.PUBLISH_TAGGED, path)
        packed, progress = Packing.finder(self.fqrn, self.archives).find(changeset), _Progress()

        def attempt() -> Published:
            with self.node.work(path, holder=holder, on_lease=on_lease) as session:
                head = self.read()
                progress.before = head.manifest.revision if progress.before is None else progress.before
                with progress.phase("look"):
                    found = self.compared.difference(head.revision, packed, contents=True)
                if found is None and (tag is None or self._tagged(head, tag, path)):
                    return self._outcome(path, head, progress, unchanged=not progress.sent)
                self._require_place(head, packed, found, replace=replace, sent=progress.sent)
                started = time.monotonic()
                try:
                    self._install(session, packed, head, tag, progress)
                except (NodeLost, NodeUnreachable):
                    raise
                except NodeError as error:
                    self._raise_unless_published(error, packed, tag, progress)
                progress.held_s += time.monotonic() - started
            with progress.phase("confirm"):
                self._until(head, lambda later: self._holds(later, packed), f"what was published at {path}")
            return self._outcome(path, self.read(), progress)

        done = self.repeated(attempt)
        packed.forget()
        return done

    def remove(self, path: str, *, holder: str, now: datetime) -> Published:  # noqa: ARG002 - the node's own clock counts
        """Remove the tree or file at ``path``."""
        self.require(Operation.REMOVE, checked_destination(path))
        progress = _Progress()

        def attempt() -> Published:
            with self.node.work(path, holder=holder) as session:
                head = self.read()
                progress.before = head.manifest.revision if progress.before is None else progress.before
                if head.revision.lookup(path) is None:
                    if not progress.sent:
                        raise DestinationError(path, "nothing is there")
                    return self._outcome(path, head, progress)
                started = time.monotonic()
                if ":" in path:  # which separates several paths where ingest takes them away
                    with session.transaction():
                        session.run(Verb.PLACE, session.commands.clear(path))
                        self._publish_it(session, progress, None)
                else:
                    progress.sent = True
                    session.ingest(session.commands.delete(path))
                progress.held_s += time.monotonic() - started
            self._until(head, lambda later: later.revision.lookup(path) is None, f"that {path} is gone")
            return self._outcome(path, self.read(), progress)

        return self.repeated(attempt)

    def release(
        self,
        paths: Collection[str],
        *,
        floor: str | None,
        holder: str,
        now: datetime,  # noqa: ARG002 - the node's own clock counts
        created: Collection[str] = (),
    ) -> Released:
        """Take away those of ``paths`` that are reserved and still empty, and what is empty without them.

        One transaction; none when there is nothing to take away.
        """
        self.require(Operation.RELEASE, next(iter(paths), ""))

        def empty(head: Repository) -> tuple[str, ...]:
            return required_objects.unused(head.revision, paths, floor, created)

        head, gone, progress = self.read(), list[str](), _Progress()
        wanted = empty(head)
        if not wanted:
            return Released(head.manifest.revision, ())

        def attempt() -> int:
            with self.node.work(common_top(wanted), holder=holder) as session:
                head = self.read()
                left = [path for path in empty(head) if is_below(path, common_top(wanted))]
                if not left:
                    return head.manifest.revision
                gone[:] = left
                with session.transaction():
                    for path in left:
                        session.run(Verb.PLACE, session.commands.clear(path))
                    self._publish_it(session, progress, None)
                return self._until(
                    head, lambda later: all(later.revision.lookup(path) is None for path in left), "their removal"
                )

        return Released(self.repeated(attempt), tuple(gone))

    def change(
        self,
        lease_path: str,
        apply: Callable[[Edit], None],  # noqa: ARG002
        *,
        holder: str,  # noqa: ARG002
        now: datetime,  # noqa: ARG002
        tag: NewTag | None = None,  # noqa: ARG002
    ) -> Published:
        """Always refused: `cvmfs_server` works on files. Raises NotSupported."""
        self.require(Operation.CHANGE, lease_path)
        raise NotSupported(self.fqrn, "single entries cannot be changed by way of a node", path=lease_path)

    # -- private

    def _install(
        self, session: Session, packed: NodeArchive, head: Repository, tag: NewTag | None, progress: _Progress
    ) -> None:
        path, commands = packed.changeset.destination, session.commands
        there = head.revision.lookup(path)
        if self.ingest and tag is None and (there is None or required_objects.is_reserved(head.revision, path)):
            with progress.phase("send"):
                lines = session.run(Verb.SPOOL, commands.spooled(), feed=packed.blocks(), quiet=True).lines
                self._require_arrived(packed, lines)
            with progress.phase("publish"):
                progress.sent = True
                session.ingest(commands.ingest(path, create=there is None))
            session.run(Verb.LOOK, commands.forget(), quiet=True)
            return
        with session.transaction():
            with progress.phase("send"):
                session.run(Verb.PLACE, commands.make(path))
                session.run(Verb.UNPACK, commands.unpack(path), feed=packed.blocks())
            with progress.phase("publish"):
                self._publish_it(session, progress, tag)

    @staticmethod
    def _publish_it(session: Session, progress: _Progress, tag: NewTag | None) -> None:
        progress.sent = True
        name, message = (tag.name, tag.description) if tag else (None, "")
        session.run(Verb.PUBLISH, session.commands.publish(name, message))

    def _require_arrived(self, packed: NodeArchive, lines: Sequence[str]) -> None:
        here = hashlib.sha256()
        for block in packed.blocks():
            here.update(block)
        if not lines or lines[-1].split(" ")[0] != here.hexdigest():
            raise SYNC_FAILED(self.fqrn, "the archive did not arrive on the node as it was sent", hint="try again")

    def _require_place(
        self, head: Repository, packed: NodeArchive, found: FirstDifference | None, *, replace: bool, sent: bool
    ) -> None:
        """Raise unless the tree may be put at its destination, given what is there now."""
        changeset, view = packed.changeset, head.revision
        path = changeset.destination
        there = view.nested_at(path)
        if there is None:
            above = view.lookup(parent_of(path))
            if above is None or not above.is_directory:
                raise NotReserved(path, "the directory above it is not there")
            required_objects.missing_directories(view, [path])
            return
        if found is None or required_objects.is_reserved(view, path):
            return
        if not replace:
            raise required_objects.occupied(path)
        self.require(Operation.REPLACE, path)
        if found.what in SLIGHT:
            self.require(Operation.TREE_OWNERS if found.what == OWNER else Operation.TREE_XATTRS, found.path)
        if sent:
            return  # this was checked before the connection was lost
        if not required_objects.is_derived_from(head.catalogs, changeset, there):
            raise BaseChanged(path, "another publication put something there since this tree was packed")

    def _raise_unless_published(
        self, error: NodeError, packed: NodeArchive, tag: NewTag | None, progress: _Progress
    ) -> None:
        """A command that failed may have done its work before it did: then the work counts."""
        if not progress.sent:
            raise error
        head = self.read()
        before = progress.before or 0
        if head.manifest.revision <= before or not self._holds(head, packed):
            raise error
        if tag is not None and not self._tagged(head, tag, packed.changeset.destination):
            raise error
        log.warning("%s; revision %d holds the tree all the same", error, head.manifest.revision)

    def _holds(self, head: Repository, packed: NodeArchive) -> bool:
        found = self.compared.difference(head.revision, packed, contents=False)
        return found is None or (found.what in SLIGHT and bool(self.allow_lossy))

    def _until(self, before: Repository, stands: Callable[[Repository], bool], what: str) -> int:
        """The revision in which readers see it; web servers may take a moment. Raises NodeError."""
        deadline, pause_s = time.monotonic() + self.confirm_s, _POLL_S[0]
        while True:
            head = self.read()
            newer = head.manifest.revision > before.manifest.revision
            if newer and stands(head):
                return head.manifest.revision
            if time.monotonic() > deadline:
                detail = f"revision {head.manifest.revision} does not show {what} after {self.confirm_s:.0f} s"
                raise NOT_SEEN(self.fqrn, detail)
            threading.Event().wait(pause_s)
            pause_s = min(pause_s * 2, _POLL_S[1])

    def _tagged(self, head: Repository, tag: NewTag, path: str) -> bool:
        """Tell whether the tag names a revision that holds what is at the path now."""
        found = next((known for known in head.tags() if known.name == tag.name), None)
        there = head.revision.nested_at(path)
        return (
            found is not None
            and there is not None
            and required_objects.is_tree(Revision(head.catalogs, found.hash).nested_at(path), there.hash)
        )

    def _outcome(self, path: str, head: Repository, progress: _Progress, *, unchanged: bool = False) -> Published:
        there = head.revision.nested_at(path) if head.revision.lookup(path) is not None else None
        return Published(
            path, progress.before or 0, head.manifest.revision, head.manifest.root,
            there.hash if there else None, progress.held_s, unchanged, dict(progress.phases),
        )  # fmt: skip


def _skeleton(created: Sequence[str], nested: Collection[str], now: datetime) -> Iterator[bytes]:
    """An archive with these directories, and the marker of a nested catalog in those that are to be one."""
    mtime = int(now.timestamp())
    made = io.BytesIO()
    for path in created:
        made.write(member(Entry(path[1:], EntryKind.DIRECTORY, 0o755, mtime)))
        if path in nested:
            made.write(member(Entry(f"{path[1:]}/{MARKER}", EntryKind.FILE, 0o644, mtime)))
    made.write(bytes(2 * tarfile.BLOCKSIZE))
    yield made.getvalue()


PACKED = "packed"
"""Below the site's ``var``: trees that were prepared for a node and are not published yet."""

_WAYS = {"stock": PublishRoute.SERVER_STOCK, "nightshift": PublishRoute.SERVER_OURS, "none": PublishRoute.SERVER_LOCAL}


def packing_for(settings: RepositorySettings, repository: Repository, var: Path) -> Packing:
    """Return what packs trees for a repository's node. Raises FormatError for an owner map that cannot be read."""
    return Packing(
        settings.fqrn, var / PACKED / settings.fqrn, tree_options(settings.prepare, repository), _lossless(settings)
    )


def open_server(
    settings: RepositorySettings, node: NodeSettings, secrets: Secrets, var: Path, read: Callable[[], Repository]
) -> ServerPublisher:
    """The publisher of a repository on its node. Nothing is connected yet."""
    way, kept = _WAYS[node.behind], settings.prepare
    losses = frozenset(Loss(loss) for loss in settings.allow_lossy)
    owner = kept.owner

    address = address_of(settings.fqrn, node, secrets)
    commands = Commands(
        fqrn=settings.fqrn,
        mount=node.mount.replace("{fqrn}", settings.fqrn),
        spool=node.spool.replace("{fqrn}", settings.fqrn),
        program=node.command,
        gateway=way is not PublishRoute.SERVER_LOCAL,
        keep_owners=node.keep_owners,
        limit_s=node.time_limit_s,
        owner=(owner.uid, owner.gid) if owner else None,
        xattrs=bool(kept.xattrs),
    )
    return ServerPublisher(
        fqrn=settings.fqrn,
        way=way,
        node=Node(address, commands, node.busy_wait_s),
        read=read,
        allow_lossy=losses,
        archives=var / PACKED / settings.fqrn,
        compared=TreeComparison(
            owners=node.keep_owners,
            xattrs=kept.xattrs,
            mtime_ns=kept.mtime_ns,
            special_bits=kept.special_bits == "keep",
            specials=not (way is PublishRoute.SERVER_STOCK and Loss.SPECIALS in losses),
        ),
        ingest=node.install == "ingest",
    )


def address_of(fqrn: str, login: SshLogin, secrets: Secrets) -> NodeAddress:
    """Return where a machine is that has the repository, and how we log in there. The passphrase is asked for when
    needed."""

    def passphrase() -> str | None:
        return secrets.get(login.connection).password if login.connection else None

    return NodeAddress(
        fqrn=fqrn,
        host=login.host,
        port=login.port,
        user=login.user,
        known_hosts=login.known_hosts,
        key=login.key,
        passphrase=passphrase,
    )


def _lossless(settings: RepositorySettings) -> Lossless:
    assert settings.server is not None  # noqa: S101 - the settings see to it
    way, losses = _WAYS[settings.server.behind], frozenset(Loss(loss) for loss in settings.allow_lossy)
    return lambda operation, path: require(way, operation, fqrn=settings.fqrn, path=path, allow_lossy=losses)
