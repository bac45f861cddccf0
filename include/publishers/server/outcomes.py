"""Exit codes and messages of a node's commands, as tables (docs/publishers.md, the node)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum

from include.cvmfs.errors import FormatError
from include.errors import ErrorRow
from include.gateway.duration import parse_duration
from include.gateway.errors import PathBusy
from include.publishers.errors import PublisherError
from include.publishers.server.commands import HELD, MISPLACED
from include.publishers.server.errors import (
    ANOTHER_PUBLISH,
    COMMAND_FAILED,
    COMMAND_HUNG,
    COMMAND_MISSING,
    COMMIT_REFUSED,
    FILES_OPEN,
    INPUT_REFUSED,
    KEY_REFUSED,
    LEASE_LOST,
    LEASE_NOT_DROPPED,
    NAME_REFUSED,
    NODE_FULL,
    NOT_IN_TRANSACTION,
    OPEN_FAILED,
    PATH_REFUSED,
    PLACE_REFUSED,
    REPOSITORY_UNAVAILABLE,
    SIGNING_FAILED,
    SYNC_FAILED,
    UNKNOWN_REPOSITORY,
    WHITELIST_EXPIRED,
    NodeBusy,
    NodeError,
    TransactionOpen,
)

_SHOWN_LINES = 8
_LINE_CHARACTERS = 300
_REMAINING = re.compile(r"Path busy\. Time remaining = (\S+)")


class Verb(Enum):
    """What was being done; the value is the word that messages use."""

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


Kind = ErrorRow[..., NodeError] | type[PathBusy]
_TIMED_OUT = frozenset({124, 137})
_NO_PROGRAM = frozenset({126, 127})

CODES: Mapping[tuple[Verb, int], Kind] = {
    (Verb.TRANSACTION, 16): PathBusy,
    (Verb.TRANSACTION, 17): TransactionOpen,
    (Verb.TRANSACTION, 2): PATH_REFUSED,
    (Verb.TRANSACTION, 20): PATH_REFUSED,
    (Verb.TRANSACTION, 22): INPUT_REFUSED,
    (Verb.TRANSACTION, 5): OPEN_FAILED,
    (Verb.LOCK, 66): UNKNOWN_REPOSITORY,  # of flock: no such folder
    (Verb.ABORT, 5): LEASE_NOT_DROPPED,
    (Verb.ABORT, 6): LEASE_NOT_DROPPED,
    (Verb.ABORT, 4): FILES_OPEN,
}
"""Exit codes and what they mean where nothing is said that is more precise."""
_EXACT = frozenset({PathBusy, TransactionOpen})

# The first that is found in the output counts. Messages of the gateway come before those of the steps they end.
MESSAGES: Sequence[tuple[str, Kind]] = (
    ("No space left on device", NODE_FULL),
    ("Disk quota exceeded", NODE_FULL),
    ("Path busy. Time remaining", PathBusy),
    ("lease path busy", PathBusy),
    ("another transaction is already open", TransactionOpen),
    ("invalid_hmac", KEY_REFUSED),
    ("authorization error", KEY_REFUSED),
    ("cannot read gateway key", KEY_REFUSED),
    ("invalid lease", LEASE_LOST),
    ("lease_expired", LEASE_LOST),
    ("no statistics counters for lease", LEASE_LOST),
    ("cannot drop lease", LEASE_NOT_DROPPED),
    ("doesn't recognize the lease or cannot drop it", LEASE_NOT_DROPPED),
    ("is not in a transaction", NOT_IN_TRANSACTION),
    ("in a transaction", TransactionOpen),
    ("Open writable file descriptors", FILES_OPEN),
    ("Current working directory is in", FILES_OPEN),
    ("Repository whitelist for", WHITELIST_EXPIRED),
    ("whitelist expired", WHITELIST_EXPIRED),
    ("Repository unavailable under", REPOSITORY_UNAVAILABLE),
    ("Another publish process is active", ANOTHER_PUBLISH),
    ("is already in use", NAME_REFUSED),
    ("Spaces are not allowed in tag names", NAME_REFUSED),
    ("Lease end request - error reply", COMMIT_REFUSED),
    ("SessionContext", COMMIT_REFUSED),
    ("Failed to commit transaction", COMMIT_REFUSED),
    ("Synchronization failed", SYNC_FAILED),
    ("Failed to apply .cvmfsdirtab", SYNC_FAILED),
    ("Manifest creation failed", SYNC_FAILED),
    ("Tagging failed", NAME_REFUSED),
    ("Signing failed", SIGNING_FAILED),
    ("cannot open transaction on non-existing path", PATH_REFUSED),
    ("not a directory", PATH_REFUSED),
    ("does not exist", UNKNOWN_REPOSITORY),
    ("cannot acquire lease", OPEN_FAILED),
)
_SPOKEN = frozenset(Verb) - {Verb.LOCK, Verb.LOOK, Verb.PLACE, Verb.UNPACK, Verb.SPOOL}


def failure(
    fqrn: str, verb: Verb, code: int, lines: Sequence[str], *, path: str = "", limit_s: int = 0
) -> PublisherError | PathBusy:
    """The error for an exit code other than 0; it ends with the node's last words."""
    words = _last_words(lines)
    detail = f"{path or '/'}: {verb.value} ended with code {code} on the node{words}"
    if code == HELD:
        return busy(NodeBusy, fqrn, path, f"another task of ours is at work on the node{words}", limit_s)
    if code == MISPLACED:
        return PLACE_REFUSED(fqrn, f"{path or '/'} is not there on the node{words}", path=path)
    if code in _TIMED_OUT:
        return COMMAND_HUNG(fqrn, f"{path or '/'}: {verb.value} took longer than {limit_s} s{words}", path=path)
    if code in _NO_PROGRAM:
        return COMMAND_MISSING(fqrn, detail, path=path)
    kind = _kind(verb, code, "\n".join(lines))
    if kind is PathBusy:
        text = f"{fqrn}{path or '/'} is leased by another writer"
        return PathBusy(text, time_remaining_s=_remaining_s(lines), repository=fqrn, path=path, reason="path_busy")
    if isinstance(kind, type):
        return busy(TransactionOpen, fqrn, path, f"another user has a transaction open on the node{words}", limit_s)
    return kind(fqrn, detail, path=path)


def busy(kind: type[NodeBusy], fqrn: str, path: str, detail: str, at_most_s: float) -> NodeBusy:
    """The node is not to be had; it is not known for how long, but no longer than a command may take."""
    return kind(f"repository {fqrn}: {detail}; {kind.hint}", time_remaining_s=at_most_s, repository=fqrn, path=path)


def _kind(verb: Verb, code: int, text: str) -> Kind:
    by_code = CODES.get((verb, code))
    if by_code in _EXACT:
        return by_code or COMMAND_FAILED
    for pattern, kind in MESSAGES if verb in _SPOKEN else MESSAGES[:2]:
        if pattern in text:
            return kind
    return by_code or COMMAND_FAILED


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
