"""The commands of a publisher node as lists of arguments, the few lines of shell around them, and what failures mean.

The texts of shell are constant: whatever is variable comes as an argument of its own, and every list is quoted as a
whole (`shlex.join`) where it crosses to the node. Options, exit codes and messages: docs/publishers.md, the node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from include.cvmfs.errors import FormatError
from include.errors import ErrorRow
from include.gateway.errors import PathBusy
from include.gateway.protocol import parse_duration
from include.publishers import errors

HELD = 75
"""Exit code of a lock that another process holds (EX_TEMPFAIL)."""
MISPLACED = 91
"""Exit code for a place whose parent directory is not really at its path, as behind a symbolic link."""
KILL_AFTER_S = 30

# The lock lives as long as its channel: when our end goes, `cat` reads the end of its input.
_HOLD = "echo held; exec cat >/dev/null"
# $1 marker of an open transaction, $2 record, $3 line of the record, the rest: how it is opened
_OPEN = """
mark=$1 record=$2 line=$3; shift 3
"$@" || exit $?
printf '%s\\n%s\\n' "$(stat -c '%i %.Y' -- "$mark")" "$line" >"$record"
"""
_CLAIM = """
printf '%s\\n%s\\n' "$(stat -c '%i %.Y' -- "$1")" "$2" >"$3"
"""
# $1 marker, $2 record, the rest: how it is ended. The record goes when the transaction did.
_END = """
mark=$1 record=$2; shift 2
"$@"; code=$?
[ -e "$mark" ] || rm -f -- "$record"
exit $code
"""
_LOOK = """
if [ -e "$1" ]; then echo open; stat -c '%i %.Y' -- "$1"; else echo closed; echo; fi
if [ -r "$2" ]; then head -c 4096 -- "$2"; fi
"""
# $1 root of the mount, $2 path of a directory in it: to be there, and not through a symbolic link.
_ENTER = """
root=$(cd -P -- "$1" && pwd -P) || exit 91
cd -P -- "$1$2" || exit 91
[ "$(pwd -P)" = "$root$2" ] || { echo "$1$2 leads to $(pwd -P)" >&2; exit 91; }
"""
_CLEAR = (
    _ENTER
    + """
rm -rf -- "./$3"
"""
)
_MAKE = (
    _ENTER
    + """
rm -rf -- "./$3" && mkdir -- "./$3" && : >"./$3/.cvmfscatalog" && chmod 644 "./$3/.cvmfscatalog"
"""
)
_UNPACK = (
    _ENTER
    + """
shift 2
exec tar --extract --file=- --preserve-permissions --delay-directory-restore --warning=no-unknown-keyword "$@"
"""
)
_SPOOL = 'umask 077; cat >"$1" && sha256sum <"$1"'
# $1 spooled archive, the rest: the command that reads it
_FEED = 'file=$1; shift; exec "$@" <"$file"'


@dataclass(frozen=True, slots=True)
class Record:
    """The note on the node beside a transaction that Nightshift opened: whose it is, and since when."""

    token: str
    holder: str
    path: str
    began: datetime

    def format(self) -> str:
        """Return one line of JSON."""
        return json.dumps(
            {"token": self.token, "owner": self.holder, "path": self.path, "began": self.began.isoformat()},
            ensure_ascii=True,
        )

    @classmethod
    def parse(cls, text: str) -> Record:
        """Raises FormatError."""
        try:
            fields = json.loads(text)
            began = datetime.fromisoformat(fields["began"])
            return cls(str(fields["token"]), str(fields["owner"]), str(fields["path"]), began.astimezone(UTC))
        except (ValueError, KeyError, TypeError) as fault:
            raise FormatError("record of a transaction", f"{text[:80]!r} is invalid ({fault})") from None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """State of the node at a look. ``record``: of the very transaction that is open, None if that is not ours."""

    open: bool
    record: Record | None = None
    stale: bool = False

    @classmethod
    def parse(cls, lines: Sequence[str]) -> SeenNode:
        """The output of :meth:`Commands.look`. A record of another transaction than the open one is ``stale``."""
        if not lines or lines[0] not in ("open", "closed"):
            raise FormatError("the node's state", f"{' '.join(lines)[:80]!r} is invalid")
        identity = lines[1] if len(lines) > 1 else ""
        if len(lines) < 4:
            return cls(lines[0] == "open", stale=len(lines) > 2)
        if lines[0] == "closed" or lines[2] != identity:
            return cls(lines[0] == "open", stale=True)
        try:
            return cls(True, Record.parse(lines[3]))
        except FormatError:
            return cls(True, stale=True)


@dataclass(frozen=True, slots=True)
class NodeTag:
    """A tag as the node lists it."""

    name: str
    hash: str
    size: int
    revision: int
    timestamp: int
    branch: str
    description: str

    @classmethod
    def parse(cls, line: str) -> NodeTag:
        """A line of ``tag -l -x``. Raises FormatError."""
        parts = line.split(" ", 6)
        try:
            name, root, size, revision, timestamp, branch = parts[:6]
            return cls(
                name, root, int(size), int(revision), int(timestamp), "" if branch == "(default)" else branch,
                parts[6] if len(parts) > 6 else "",
            )  # fmt: skip
        except ValueError as fault:
            raise FormatError("list of tags", f"line {line[:80]!r} is no tag ({fault})") from None


@dataclass(frozen=True, slots=True)
class Commands:
    """The command lines for one repository of one node. ``gateway``: whether the node publishes through one.

    ``limit_s``: seconds after which the node itself ends a command.
    """

    fqrn: str
    mount: str
    spool: str
    program: tuple[str, ...] = ("cvmfs_server",)
    gateway: bool = True
    keep_owners: bool = False
    limit_s: int = 7200
    owner: tuple[int, int] | None = None
    xattrs: bool = False
    marker: str = field(init=False)
    record: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marker", f"{self.spool}/in_transaction.lock")
        object.__setattr__(self, "record", f"{self.spool}/nightshift.transaction")

    # -- the lock

    def hold(self, wait_s: int) -> list[str]:
        """Take the lock among our tasks, say so, and keep it until the input ends; ``HELD`` if it cannot be had."""
        return [*_flock(f"{self.spool}/nightshift.lock", wait_s), "sh", "-c", _HOLD, "hold"]

    def settle(self, wait_s: int) -> list[str]:
        """Wait until nothing that we began is at work there any more; ``HELD`` if it still is."""
        return [*_flock(f"{self.spool}/nightshift.work", wait_s), "true"]

    # -- transactions

    def look(self) -> list[str]:
        """Tell whether a transaction is open, and the record beside it."""
        return _shell(_LOOK, self.marker, self.record)

    def forget(self) -> list[str]:
        """Remove a record of a transaction that is no more, and what was spooled for it."""
        return ["rm", "-f", "--", self.record, self.archive]

    def transaction(self, path: str, wait_s: int, record: Record) -> list[str]:
        """Open one, waiting for a busy path, and write down that it is ours."""
        target = f"{self.fqrn}{path}" if self.gateway else self.fqrn
        opening = self._ours("transaction", "-t", str(wait_s), target)
        limited = ["timeout", f"--kill-after={KILL_AFTER_S}", str(self.limit_s + wait_s), *opening]
        return self._working(_shell(_OPEN, self.marker, self.record, record.format(), *limited))

    def claim(self, record: Record) -> list[str]:
        """Write down that the open transaction is ours."""
        return _shell(_CLAIM, self.marker, record.format(), self.record)

    def publish(self, tag: str | None = None, message: str = "") -> list[str]:
        named = ["-a", tag, *(["-m", message] if message else [])] if tag else []
        return self._ending(self._ours("publish", *named, self.fqrn))

    def abort(self, wait_s: int = 0) -> list[str]:
        """Give the transaction up, once nothing that we began is at work there any more."""
        return self._ending(self._ours("abort", "-f", self.fqrn), wait_s)

    # -- places below the mount

    def clear(self, path: str) -> list[str]:
        """Remove a place; its parent directory has to be really at its path, or the code is ``MISPLACED``."""
        above, _, name = path.rpartition("/")
        return self._working(self._limited(_shell(_CLEAR, self.mount, above, name)))

    def make(self, path: str) -> list[str]:
        """The same, with an empty nested catalog in its place."""
        above, _, name = path.rpartition("/")
        return self._working(self._limited(_shell(_MAKE, self.mount, above, name)))

    def unpack(self, path: str) -> list[str]:
        """Unpack an archive from the input into a directory (``""`` is the root of the repository)."""
        options = ["--same-owner", "--numeric-owner"] if self.keep_owners else ["--no-same-owner"]
        options += ["--xattrs", "--xattrs-include=*"] if self.xattrs else []
        return self._working(self._limited(_shell(_UNPACK, self.mount, path, *options)))

    # -- ingest

    @property
    def archive(self) -> str:
        """Return where an archive is spooled on the node."""
        return f"{self.spool}/nightshift.tar"

    def spooled(self) -> list[str]:
        """Keep the input there; prints its SHA-256."""
        return self._working(self._limited(_shell(_SPOOL, self.archive)))

    def ingest(self, path: str, *, create: bool) -> list[str]:
        """Publish the spooled archive at a place; ``create``: with a nested catalog of its own."""
        options = ["-t", "-", "-b", path.lstrip("/"), *(["-c"] if create else [])]
        if self.owner is not None:
            options += ["-u", str(self.owner[0]), "-g", str(self.owner[1])]
        elif self.keep_owners:
            options += ["-k"]
        feeding = _shell(_FEED, self.archive, *self._ours("ingest", *options, self.fqrn))
        return self._working(self._limited(feeding))

    def delete(self, path: str) -> list[str]:
        """Take a place away. Raises NodeError for a path with a colon, which separates several."""
        if ":" in path:
            raise errors.INPUT_REFUSED(self.fqrn, f"{path}: ingest cannot take away a path with a colon", path=path)
        return self._working(self._limited(self._ours("ingest", "-d", path.lstrip("/"), self.fqrn)))

    # -- tags, collections, checks

    def tag_add(self, name: str, message: str, root: str | None) -> list[str]:
        options = [*(["-m", message] if message else []), *(["-h", root] if root else [])]
        return self._working(self._limited(self._ours("tag", "-a", name, *options, self.fqrn)))

    def tag_remove(self, names: Sequence[str]) -> list[str]:
        each = [part for name in names for part in ("-r", name)]
        return self._working(self._limited(self._ours("tag", "-f", *each, self.fqrn)))

    def tag_list(self) -> list[str]:
        return self._limited(self._ours("tag", "-l", "-x", self.fqrn))

    def collect(self, older_than: datetime | None = None, *, listed: bool = False, dry_run: bool = False) -> list[str]:
        """Keep revisions that were superseded later; None: as the tool has it, 3 days ago."""
        since = ["-t", f"{older_than.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"] if older_than is not None else []
        options = [*since, *(["-l"] if listed else []), *(["-d"] if dry_run else [])]
        return self._working(self._limited(self._ours("gc", "-f", *options, self.fqrn)))

    def check(self) -> list[str]:
        return self._limited(self._ours("check", self.fqrn))

    # -- private

    def _ours(self, verb: str, *arguments: str) -> list[str]:
        return [*self.program, verb, *arguments]

    def _limited(self, command: Sequence[str]) -> list[str]:
        return ["timeout", f"--kill-after={KILL_AFTER_S}", str(self.limit_s), *command]

    def _ending(self, command: Sequence[str], wait_s: int = 0) -> list[str]:
        return self._working(_shell(_END, self.marker, self.record, *self._limited(command)), wait_s)

    def _working(self, command: Sequence[str], wait_s: int = 0) -> list[str]:
        return [*_flock(f"{self.spool}/nightshift.work", wait_s), *command]


def _shell(text: str, *arguments: str) -> list[str]:
    return ["sh", "-c", text, "nightshift", *arguments]


def _flock(file: str, wait_s: int) -> list[str]:
    # --close: what the command leaves running in the background must not keep the lock
    return ["flock", "--close", f"--conflict-exit-code={HELD}", f"--wait={wait_s}", file]


_SHOWN_LINES = 8
_LINE_CHARACTERS = 300
_REMAINING = re.compile(r"Path busy\. Time remaining = (\S+)")


class Verb(Enum):
    """Action on a node; the value is the word that messages use."""

    LOCK = "taking the lock"
    LOOK = "checking the node"
    TRANSACTION = "transaction"
    PLACE = "making room"
    UNPACK = "unpacking"
    SPOOL = "keeping the archive"
    PUBLISH = "publish"
    ABORT = "abort"
    INGEST = "ingest"
    TAG = "tag"
    COLLECT = "gc"
    CHECK = "check"
    SNAPSHOT = "snapshot"


Kind = ErrorRow[..., errors.NodeError] | type[PathBusy]
_TIMED_OUT = frozenset({124, 137})
_NO_PROGRAM = frozenset({126, 127})

CODES: Mapping[tuple[Verb, int], Kind] = {
    (Verb.TRANSACTION, 16): PathBusy,
    (Verb.TRANSACTION, 17): errors.TransactionOpen,
    (Verb.TRANSACTION, 2): errors.PATH_REFUSED,
    (Verb.TRANSACTION, 20): errors.PATH_REFUSED,
    (Verb.TRANSACTION, 22): errors.INPUT_REFUSED,
    (Verb.TRANSACTION, 5): errors.OPEN_FAILED,
    (Verb.LOCK, 66): errors.UNKNOWN_REPOSITORY,  # of flock: no such folder
    (Verb.ABORT, 5): errors.LEASE_NOT_DROPPED,
    (Verb.ABORT, 6): errors.LEASE_NOT_DROPPED,
    (Verb.ABORT, 4): errors.FILES_OPEN,
}
"""Exit codes and what they mean where nothing is said that is more precise."""
_EXACT = frozenset({PathBusy, errors.TransactionOpen})

# The first that is found in the output counts. Messages of the gateway come before those of the steps they end.
MESSAGES: Sequence[tuple[str, Kind]] = (
    ("No space left on device", errors.NODE_FULL),
    ("Disk quota exceeded", errors.NODE_FULL),
    ("Path busy. Time remaining", PathBusy),
    ("lease path busy", PathBusy),
    ("another transaction is already open", errors.TransactionOpen),
    ("invalid_hmac", errors.KEY_REFUSED),
    ("authorization error", errors.KEY_REFUSED),
    ("cannot read gateway key", errors.KEY_REFUSED),
    ("invalid lease", errors.LEASE_LOST),
    ("lease_expired", errors.LEASE_LOST),
    ("no statistics counters for lease", errors.LEASE_LOST),
    ("cannot drop lease", errors.LEASE_NOT_DROPPED),
    ("doesn't recognize the lease or cannot drop it", errors.LEASE_NOT_DROPPED),
    ("is not in a transaction", errors.NOT_IN_TRANSACTION),
    ("in a transaction", errors.TransactionOpen),
    ("Open writable file descriptors", errors.FILES_OPEN),
    ("Current working directory is in", errors.FILES_OPEN),
    ("Repository whitelist for", errors.WHITELIST_EXPIRED),
    ("whitelist expired", errors.WHITELIST_EXPIRED),
    ("Repository unavailable under", errors.REPOSITORY_UNAVAILABLE),
    ("Another publish process is active", errors.ANOTHER_PUBLISH),
    ("is already in use", errors.NAME_REFUSED),
    ("Spaces are not allowed in tag names", errors.NAME_REFUSED),
    ("Lease end request - error reply", errors.COMMIT_REFUSED),
    ("SessionContext", errors.COMMIT_REFUSED),
    ("Failed to commit transaction", errors.COMMIT_REFUSED),
    ("Synchronization failed", errors.SYNC_FAILED),
    ("Failed to apply .cvmfsdirtab", errors.SYNC_FAILED),
    ("Manifest creation failed", errors.SYNC_FAILED),
    ("Tagging failed", errors.NAME_REFUSED),
    ("Signing failed", errors.SIGNING_FAILED),
    ("cannot open transaction on non-existing path", errors.PATH_REFUSED),
    ("not a directory", errors.PATH_REFUSED),
    ("does not exist", errors.UNKNOWN_REPOSITORY),
    ("cannot acquire lease", errors.OPEN_FAILED),
)
_SPOKEN = frozenset(Verb) - {Verb.LOCK, Verb.LOOK, Verb.PLACE, Verb.UNPACK, Verb.SPOOL}


def failure(
    fqrn: str, verb: Verb, code: int, lines: Sequence[str], *, path: str = "", limit_s: int = 0
) -> errors.PublisherError | PathBusy:
    """The error for an exit code other than 0; it ends with the node's last words."""
    words = _last_words(lines)
    detail = f"{path or '/'}: {verb.value} ended with code {code} on the node{words}"
    if code == HELD:
        return busy(errors.NodeBusy, fqrn, path, f"another task of ours is at work on the node{words}", limit_s)
    if code == MISPLACED:
        return errors.PLACE_REFUSED(fqrn, f"{path or '/'} is not there on the node{words}", path=path)
    if code in _TIMED_OUT:
        return errors.COMMAND_HUNG(fqrn, f"{path or '/'}: {verb.value} took longer than {limit_s} s{words}", path=path)
    if code in _NO_PROGRAM:
        return errors.COMMAND_MISSING(fqrn, detail, path=path)
    kind = _kind(verb, code, "\n".join(lines))
    if kind is PathBusy:
        text = f"{fqrn}{path or '/'} is leased by another writer"
        return PathBusy(text, time_remaining_s=_remaining_s(lines), repository=fqrn, path=path, reason="path_busy")
    if isinstance(kind, type):
        return busy(
            errors.TransactionOpen, fqrn, path, f"another user has a transaction open on the node{words}", limit_s
        )
    return kind(fqrn, detail, path=path)


def busy(kind: type[errors.NodeBusy], fqrn: str, path: str, detail: str, at_most_s: float) -> errors.NodeBusy:
    """The node is busy for an unknown time, at most as long as a command may take."""
    return kind(f"repository {fqrn}: {detail}; {kind.hint}", time_remaining_s=at_most_s, repository=fqrn, path=path)


def _kind(verb: Verb, code: int, text: str) -> Kind:
    by_code = CODES.get((verb, code))
    if by_code in _EXACT:
        return by_code or errors.COMMAND_FAILED
    for pattern, kind in MESSAGES if verb in _SPOKEN else MESSAGES[:2]:
        if pattern in text:
            return kind
    return by_code or errors.COMMAND_FAILED


def _remaining_s(lines: Sequence[str]) -> float:
    for line in reversed(lines):
        if found := _REMAINING.search(line):
            try:
                return parse_duration(found[1]) / 1e9
            except (ValueError, FormatError):
                return 0.0
    return 0.0


def _last_words(lines: Sequence[str]) -> str:
    shown = [line[:_LINE_CHARACTERS] for line in lines if line.strip()][-_SHOWN_LINES:]
    return (": " + " | ".join(shown)) if shown else " without a word"
