"""What a node can do beside publishing: tags, collections, checks; and how anything there is done again.

Every attempt begins with a check of what is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.history import check_tag_description, check_tag_name
from include.cvmfs.revision.repository import Repository
from include.publishers.capabilities import Loss, Operation, Way, require
from include.publishers.errors import NotSupported
from include.publishers.server.commands import NodeTag
from include.publishers.server.errors import NAME_REFUSED, NodeLost
from include.publishers.server.node import Node, Session
from include.publishers.server.outcomes import Verb

T = TypeVar("T")

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_PAUSE_S = 1.0
_MOST_TAGS = _MOST_LINES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpkeep:
    """One repository on its node. Every method raises NodeError where a command on the node fails.

    Attributes:
        fqrn: The repository's name.
        way: Its column in the table of capabilities.
        node: The node.
        read: Opens the repository at its current revision, its signature verified.
        allow_lossy: What may get lost on the way.
    """

    fqrn: str
    way: Way
    node: Node
    read: Callable[[], Repository]
    allow_lossy: frozenset[Loss] = frozenset()

    def tags(self) -> list[NodeTag]:
        """The names of revisions, as the node lists them."""
        self.require(Operation.TAG_LIST, "")
        with self._session("listing tags") as session:
            return self._tags(session)

    def add_tag(self, name: str, *, description: str = "", root: str | None = None) -> NodeTag:
        """Give a revision a name; a name that it has already is no error.

        Args:
            name: The name.
            description: What it is for.
            root: The root hash of the revision; None: the newest.

        Returns:
            The tag, as the node lists it.

        Raises:
            TagError: It cannot be a name.
            NotSupported: The repository is published through a gateway.
            NodeError: Another revision has the name.
        """
        self.require(Operation.TAG_ADD, "")
        check_tag_description(check_tag_name(name), description)

        def attempt() -> NodeTag:
            with self._session(f"tag {name}") as session:
                wanted = root or str(self.read().manifest.root)
                there = next((tag for tag in self._tags(session) if tag.name == name), None)
                if there is None:
                    session.run(Verb.TAG, session.commands.tag_add(name, description, root))
                    there = next(tag for tag in self._tags(session) if tag.name == name)
                if ObjectHash.parse(there.hash).digest != ObjectHash.parse(wanted).digest:
                    raise NAME_REFUSED(self.fqrn, f"tag {name!r} names {there.hash}, not {wanted}")
                return there

        return self.repeated(attempt)

    def remove_tags(self, names: Sequence[str]) -> tuple[str, ...]:
        """Remove names of revisions.

        Args:
            names: The names; one that is not there is no error.

        Returns:
            Those that were there.

        Raises:
            NotSupported: The repository is published through a gateway.
        """
        self.require(Operation.TAG_REMOVE, "")
        removed = set[str]()

        def attempt() -> tuple[str, ...]:
            with self._session("removing tags") as session:
                there = {tag.name for tag in self._tags(session)} & set(names)
                removed.update(there)
                if there:
                    session.run(Verb.TAG, session.commands.tag_remove(sorted(there)))
                return tuple(sorted(removed))

        return self.repeated(attempt)

    def collect(
        self, *, older_than: datetime | None = None, listed: bool = False, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Collect garbage on the node.

        Args:
            older_than: Revisions that were superseded before this time are deleted; None: 3 days ago.
            listed: Whether the output names each deleted object.
            dry_run: Report what would be deleted; delete nothing.

        Returns:
            The lines of its output, the last million at most.

        Raises:
            NotSupported: The repository is published through a gateway, which collects by itself.
        """
        self.require(Operation.COLLECT, "")
        if self.way is not Way.SERVER_LOCAL:
            raise NotSupported(self.fqrn, "the node does not collect behind a gateway; use nightshift repo gc", path="")
        with self._session("collecting garbage") as session:
            command = session.commands.collect(older_than, listed=listed, dry_run=dry_run)
            return session.run(Verb.COLLECT, command, quiet=listed, keep=_MOST_LINES).lines

    def check(self) -> tuple[str, ...]:
        """Let the node check the repository.

        Returns:
            The lines of its output.

        Raises:
            NodeError: There are problems, or the command failed.
        """
        self.require(Operation.CHECK, "")
        with self._session("checking") as session:
            return session.run(Verb.CHECK, session.commands.check()).lines

    # -- used by the publisher on the node, too

    def require(self, operation: Operation, path: str) -> None:
        """Check an operation against the table of capabilities.

        Args:
            operation: What is asked for.
            path: The path concerned.

        Raises:
            NotSupported: It cannot be done this way.
            Lossy: Something would get lost that ``allow_lossy`` does not name.
        """
        require(self.way, operation, fqrn=self.fqrn, path=path, allow_lossy=self.allow_lossy)

    def repeated(self, attempt: Callable[[], T]) -> T:
        """Run the attempt again after a lost connection; every attempt begins with a check of what is there."""
        for number in range(1, _ATTEMPTS):
            try:
                return attempt()
            except NodeLost as lost:
                log.warning("%s; checking the node again", lost)
                threading.Event().wait(_PAUSE_S * (number - 1))
        return attempt()

    # -- private

    @contextmanager
    def _session(self, holder: str) -> Iterator[Session]:
        with self.node.work("", holder=holder) as session:
            yield session

    def _tags(self, session: Session) -> list[NodeTag]:
        lines = session.run(Verb.TAG, session.commands.tag_list(), quiet=True, keep=_MOST_TAGS).lines
        return [NodeTag.parse(line) for line in lines if line.strip()]
