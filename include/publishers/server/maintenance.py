"""Maintenance of a node: tags, collections, checks, its jobs, and how anything there is done again.

Every attempt begins with a check of what is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TypeVar

from include.cvmfs.errors import FormatError
from include.cvmfs.format.database import check_tag_description, check_tag_name
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.repository import Repository
from include.json_values import JsonValue
from include.publishers.capabilities import Loss, Operation, PublishRoute, require
from include.publishers.errors import COMMAND_FAILED, NAME_REFUSED, NodeLost, NotSupported
from include.publishers.server.commands import NodeTag, Verb, failure
from include.publishers.server.connection import CommandResult, NodeAddress, SshConnection
from include.publishers.server.node import Node, Session

_SHORT_S = 60
_SIGNAL = 128

# $1 prefix of the files, $2 who starts it, the rest: the job. The lock is inherited by what waits for the job's end.
# Looks take the lock too, shared and for a moment: two seconds tell them from a job.
_START = """
job=$1 token=$2; shift 2
exec 9>>"$job.lock" || exit 73
if ! flock --wait 2 9; then echo joined; cat -- "$job.token"; exit 0; fi
rm -f -- "$job.code" "$job.pid"
: >"$job.log" && printf '%s\\n' "$token" >"$job.token" || exit 73
setsid sh -c '
job=$1; shift
setsid "$@" >"$job.log" 2>&1 </dev/null 9>&- &
printf "%s\\n" "$!" >"$job.pid"
wait "$!"; code=$?
rm -f -- "$job.pid"
printf "%s\\n" "$code" >"$job.code.new" && mv -- "$job.code.new" "$job.code"
' nightshift "$job" "$@" >/dev/null 2>&1 </dev/null &
echo started
"""
_LOOK = """
job=$1
running() {
    [ -e "$job.lock" ] || return 1
    flock --shared --nonblock --conflict-exit-code=75 "$job.lock" true
    [ $? = 75 ]
}
if running; then echo running; elif [ -r "$job.code" ]; then cat -- "$job.code"; else echo lost; fi
[ ! -r "$job.log" ] || tail -c 16384 -- "$job.log"
"""
_END = """
job=$1 token=$2
[ "$(cat -- "$job.token")" = "$token" ] || { echo other; exit 0; }
flock --shared --nonblock --conflict-exit-code=75 "$job.lock" true
[ $? = 75 ] && [ -r "$job.pid" ] || { echo over; exit 0; }
kill -s TERM -- "-$(cat -- "$job.pid")" && echo ended
"""


class Stage(Enum):
    """Stage of a job."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """It does not run, and left no exit code: it was killed, or the machine was started again."""


@dataclass(frozen=True, slots=True)
class JobLook(JsonValue):
    """A job at one moment. `code`: its exit code once it has ended; `lines`: the last of its output."""

    stage: Stage
    code: int | None = None
    lines: tuple[str, ...] = ()

    @classmethod
    def parse(cls, output: Sequence[str]) -> JobLook:
        """Return what the look printed. Raises FormatError."""
        first, lines = (output[0] if output else ""), tuple(output[1:])
        if first in (Stage.RUNNING.value, Stage.LOST.value):
            return cls(Stage(first), lines=lines)
        if not first.isdigit() or len(first) > 3:
            raise FormatError("state of a job", f"{first[:80]!r} is no state of a job")
        return cls(Stage.ENDED, int(first), lines)


@dataclass(frozen=True, slots=True)
class DetachedJob:
    """A command of `cvmfs_server` on a machine, one of its `verb` at a time. Each call is a connection of its own."""

    address: NodeAddress
    verb: Verb
    spool: str
    command: tuple[str, ...] = field(repr=False)

    def start(self, token: str) -> bool:
        """Start it, unless it runs already; whether the one that runs is `token`'s. Raises NodeError.

        After a connection was lost the same request is sent again: it joins what the one before has started.
        """
        command = ["sh", "-c", _START, "nightshift", self._files, token, *self.command]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._run(command).lines
                break
            except NodeLost:
                if attempt == _ATTEMPTS:
                    raise
        return answer[:1] == ("started",) or answer[1:2] == (token,)

    def look(self) -> JobLook:
        """Raises NodeError."""
        return JobLook.parse(self._run(["sh", "-c", _LOOK, "nightshift", self._files]).lines)

    def end(self, token: str) -> bool:
        """End it if `token` started it; whether that was done. Raises NodeError."""
        return self._run(["sh", "-c", _END, "nightshift", self._files, token]).lines[-1:] == ("ended",)

    def require_success(self, seen: JobLook) -> None:
        """Raises NodeError unless a job has ended well; the error has its last words."""
        if seen.stage is Stage.LOST:
            words = " | ".join(seen.lines[-3:]) or "no output"
            where = self.address.name
            raise COMMAND_FAILED(self.address.fqrn, f"{self.verb.value} on {where} left no exit code: {words}")
        if seen.code is not None and seen.code > _SIGNAL:
            signal, where = seen.code - _SIGNAL, self.address.name
            raise COMMAND_FAILED(self.address.fqrn, f"{self.verb.value} on {where} was ended by signal {signal}")
        if seen.code:
            raise failure(self.address.fqrn, self.verb, seen.code, seen.lines)

    @property
    def _files(self) -> str:
        return f"{self.spool}/nightshift.{self.verb.value}"

    def _run(self, command: list[str]) -> CommandResult:
        with SshConnection(self.address) as connection:
            ended = connection.run(command, limit_s=_SHORT_S, quiet=True)
        if ended.code:
            raise failure(self.address.fqrn, Verb.LOOK, ended.code, ended.lines, limit_s=_SHORT_S)
        return ended


T = TypeVar("T")

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_PAUSE_S = 1.0
_MOST_TAGS = _MOST_LINES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpkeep:
    """A repository on its node. Every method raises NodeError where a command on the node fails.

    ``read`` opens the repository at its current revision, its signature verified. ``allow_lossy``: what may get lost on
    the way.
    """

    fqrn: str
    way: PublishRoute
    node: Node
    read: Callable[[], Repository]
    allow_lossy: frozenset[Loss] = frozenset()

    def tags(self) -> list[NodeTag]:
        """The names of revisions, as the node lists them."""
        self.require(Operation.TAG_LIST, "")
        with self.node.work("", holder="listing tags") as session:
            return self._tags(session)

    def add_tag(self, name: str, *, description: str = "", root: str | None = None) -> NodeTag:
        """Give the revision with this root, or the newest, a name; a name that it has already is no error.

        Raises TagError if it cannot be a name, NotSupported behind a gateway, and NodeError if another revision has it.
        """
        self.require(Operation.TAG_ADD, "")
        check_tag_description(check_tag_name(name), description)

        def attempt() -> NodeTag:
            with self.node.work("", holder=f"tag {name}") as session:
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
        """Remove names of revisions; returns those that were there. Raises NotSupported behind a gateway."""
        self.require(Operation.TAG_REMOVE, "")
        removed = set[str]()

        def attempt() -> tuple[str, ...]:
            with self.node.work("", holder="removing tags") as session:
                there = {tag.name for tag in self._tags(session)} & set(names)
                removed.update(there)
                if there:
                    session.run(Verb.TAG, session.commands.tag_remove(sorted(there)))
                return tuple(sorted(removed))

        return self.repeated(attempt)

    def collect(
        self, *, older_than: datetime | None = None, listed: bool = False, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Collect garbage on the node; returns the lines of its output, the last million at most.

        Deletes revisions that were superseded before ``older_than``; None: 3 days ago. ``listed``: the output names
        each deleted object. Raises NotSupported behind a gateway, which collects by itself.
        """
        self.require(Operation.COLLECT, "")
        if self.way is not PublishRoute.SERVER_LOCAL:
            raise NotSupported(self.fqrn, "the node does not collect behind a gateway; use nightshift repo gc", path="")
        with self.node.work("", holder="collecting garbage") as session:
            command = session.commands.collect(older_than, listed=listed, dry_run=dry_run)
            return session.run(Verb.COLLECT, command, quiet=listed, keep=_MOST_LINES).lines

    def check(self) -> tuple[str, ...]:
        """Let the node check the repository; returns its output by lines. Raises NodeError if there are problems."""
        self.require(Operation.CHECK, "")
        with self.node.work("", holder="checking") as session:
            return session.run(Verb.CHECK, session.commands.check()).lines

    # -- used by the publisher on the node, too

    def require(self, operation: Operation, path: str) -> None:
        """Check an operation against the table of capabilities. Raises NotSupported and Lossy."""
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

    def _tags(self, session: Session) -> list[NodeTag]:
        lines = session.run(Verb.TAG, session.commands.tag_list(), quiet=True, keep=_MOST_TAGS).lines
        return [NodeTag.parse(line) for line in lines if line.strip()]
