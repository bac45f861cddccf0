"""What a tree to be published is made of, and the guards that every tree passes, wherever it comes from.

A source gives entries in any order, each once; content is read while the entry is current, and never twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from include.cvmfs.errors import DestinationError, SourceError
from include.cvmfs.format.paths import COMPONENT, NAME_BYTES

PATH_BYTES = 4095
_LARGEST_ID = 0xFFFFFFFF
_LARGEST_TIME = 1 << 53
_MOUNTED = re.compile(rb"/cvmfs/[^/]+\.[^/]+(?=/|\Z)")
_PATH = re.compile(COMPONENT + rb"(?:/" + COMPONENT + rb")*")


class EntryKind(Enum):
    """What an entry is; the value is the word that messages use."""

    FILE = "regular file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character device"
    BLOCK_DEVICE = "block device"


SPECIALS = frozenset({EntryKind.FIFO, EntryKind.SOCKET, EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE})


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a tree. ``path`` is relative to the tree's root, which is ``""`` itself.

    ``mode``: permission bits only; ``mtime``: Unix s, and ``mtime_ns`` the ns that come to it (0 to 999,999,999);
    ``size``: bytes of a regular file, else 0; ``hardlink_to``: path of an entry that came before, which then has all
    the rest; ``device``: number of a device; ``xattr``: the blob of those extended attributes that are to be kept.
    """

    path: str
    kind: EntryKind
    mode: int
    mtime: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    symlink: str = ""
    hardlink_to: str = ""
    device: int = 0
    mtime_ns: int = 0
    xattr: bytes | None = None


class Content(Protocol):
    """The bytes of the current regular file."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, all that is left if negative; ``b""`` at the end."""

    def close(self) -> None:
        """Done with it; what is left unread is skipped."""


Opener = Callable[[], Content]


class TreeSource(Protocol):
    """A tree that can be read once. Raises SourceError for whatever cannot be taken."""

    @property
    def name(self) -> str:
        """The artifact's name for messages and records."""

    @property
    def sha256(self) -> str | None:
        """Hex digest of the artifact, once all entries were read; None for what has none (a directory)."""

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        """The entries; regular files come with a way to read them before the next entry is asked for."""

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        """Extended attributes of the current entry whose names begin with one of ``namespaces``."""


@runtime_checkable
class OutlinedSource(Protocol):
    """A source that can list what is in it without being read, as often as it is asked."""

    def outline(self, *, sizes: bool) -> Iterator[tuple[str, int]]:
        """Path and, with ``sizes``, the bytes of regular files, of all that ``entries`` would give but the root."""


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """What a tree may hold at most; ``file_bytes`` in one file, 0 for as many as in all.

    ``ratio``: bytes out per byte of archive, checked above ``ratio_from`` bytes.
    """

    members: int = 5_000_000
    bytes: int = 1 << 40
    file_bytes: int = 0
    ratio: int = 250
    ratio_from: int = 256 << 20


def printable(name: str | bytes) -> str:
    """A name as it may appear in a message or log line: control characters and strange bytes escaped."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    return text if text.isprintable() else ascii(text)[1:-1]


def refused(source: str, member: str | bytes, detail: str) -> SourceError:
    """The error for one member of the artifact ``source``; ``detail``: what is wrong, and the hint."""
    return SourceError(printable(member), f"{detail} (artifact {printable(source)})")


def checked_member(raw: bytes, source: str) -> str:
    """A member's name as a relative path: empty and ``.`` components are dropped; ``""`` is the root.

    Raises SourceError for every name that could lie outside the tree or that no catalog can hold.
    """
    path, sound = raw, _PATH.fullmatch(raw)
    if not sound and not raw.startswith(b"/"):
        path = b"/".join(part for part in raw.split(b"/") if part not in (b"", b"."))
        if raw and not path:
            return ""
        sound = _PATH.fullmatch(path)
    if sound and len(path) <= PATH_BYTES:
        try:
            return path.decode()
        except UnicodeDecodeError:
            pass
    raise refused(source, raw[:PATH_BYTES] or "(empty name)", _fault_of(path))


def _fault_of(path: bytes) -> str:
    parts = path.split(b"/")
    without = "pack the tree again without it"
    if not path:
        return f"has an empty name; {without}"
    if path.startswith(b"/"):
        return "has an absolute name, which could lie outside the tree; pack the tree again with relative names"
    if b".." in parts:
        return f"has '..' in its name, which could lie outside the tree; {without}"
    if b"\0" in path:
        return f"has a NUL byte in its name; {without}"
    if any(len(part) > NAME_BYTES for part in parts):
        return f"has a name longer than {NAME_BYTES} bytes; {without}"
    if len(path) > PATH_BYTES:
        return f"has a path longer than {PATH_BYTES} bytes; {without}"
    return "has a name that is not UTF-8; rename it and pack the tree again"


def checked_target(raw: bytes, member: str, source: str) -> str:
    """A symbolic link's target; it may point anywhere, since it is never followed. Raises SourceError."""
    if not raw or len(raw) > PATH_BYTES or b"\0" in raw:
        problem = f"has a link target that is empty, longer than {PATH_BYTES} bytes, or contains NUL"
        raise refused(source, member, f"{problem}; make the link again")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise refused(source, member, "has a link target that is not UTF-8; make the link again") from None


def checked_numbers(member: str, source: str, *, uid: int, gid: int, mtime: int) -> None:
    """Raise SourceError for owners and times that a catalog cannot hold."""
    if not (0 <= uid <= _LARGEST_ID and 0 <= gid <= _LARGEST_ID and -_LARGEST_TIME < mtime < _LARGEST_TIME):
        problem = f"has an owner or time out of range (uid {uid}, gid {gid}, mtime {mtime})"
        raise refused(source, member, f"{problem}; pack the tree again with sound ones")


def checked_destination(destination: str) -> str:
    """An absolute path below a repository's root where a tree may hang. Raises DestinationError."""
    raw = destination.encode("utf-8", "surrogatepass")
    if not raw.startswith(b"/") or len(raw) > PATH_BYTES or not _PATH.fullmatch(raw[1:]):
        shape = "must be an absolute path below the root, without closing slash, '.', '..' or empty components"
        raise DestinationError(printable(destination), f"{shape}, names of at most {NAME_BYTES} bytes")
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise DestinationError(printable(raw), "is not UTF-8; choose another name") from None
    if mounted := _MOUNTED.match(raw):
        below = printable(raw[mounted.end() :] or b"/PATH")
        problem = f"begins with {printable(mounted[0])}, where clients mount a repository"
        raise DestinationError(printable(destination), f"{problem}; give the path inside the repository, as in {below}")
    if raw.startswith(b"/.cvmfs"):
        raise DestinationError(printable(destination), "names that begin with .cvmfs are reserved; choose another one")
    return destination
