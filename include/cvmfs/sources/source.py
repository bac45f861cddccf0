"""Entries of a tree that is published, with owners and extended attributes, and the guards that every tree passes.

A source gives entries in any order, each once; content is read while the entry is current, and never twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, runtime_checkable

from include.cvmfs.errors import DestinationError, FormatError, SourceError
from include.cvmfs.format.paths import COMPONENT, NAME_BYTES

VERSION = 1
MOST = 255  # attributes of one entry, bytes of a name, bytes of a value
_NAMED_AT_MOST = 3


def pack_xattrs(attributes: Mapping[bytes, bytes]) -> bytes | None:
    """The blob of an entry's attributes; None if there are none. Raises FormatError for what it cannot hold."""
    if not attributes:
        return None
    if len(attributes) > MOST:
        raise _bad(f"{len(attributes)} of one entry, at most {MOST} are possible")
    parts = [bytes((VERSION, len(attributes)))]
    for key in sorted(attributes):
        value = attributes[key]
        if (fault := _fault(key, value)) is not None:
            raise _bad(f"{printable(key)} {fault}")
        parts += (bytes((len(key), len(value))), key, value)
    return b"".join(parts)


def unpack_xattrs(blob: bytes | None) -> dict[bytes, bytes]:
    """The attributes in a blob. Raises FormatError."""
    if blob is None:
        return {}
    if len(blob) < 2 or blob[0] != VERSION:
        raise _bad("not a blob of version 1")
    attributes: dict[bytes, bytes] = {}
    at = 2
    for _ in range(blob[1]):
        sizes = blob[at : at + 2]
        if len(sizes) < 2 or not sizes[0] or at + 2 + sum(sizes) > len(blob):
            raise _bad("an attribute has no name, or is cut short")
        key_end = at + 2 + sizes[0]
        at = key_end + sizes[1]
        attributes[blob[key_end - sizes[0] : key_end]] = blob[key_end:at]
    if at != len(blob):
        raise _bad(f"{len(blob) - at} bytes after the last attribute")
    return attributes


class AttributedSource:
    """A source whose entries carry those of their attributes whose names begin with one of ``namespaces``."""

    def __init__(self, source: TreeSource, namespaces: Iterable[str]) -> None:
        self._source = source
        self._namespaces = tuple(namespace.encode() for namespace in namespaces)
        self._dropped: Counter[str] = Counter()
        self._examples: list[str] = []

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def sha256(self) -> str | None:
        return self._source.sha256

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        for entry, opener in self._source.entries():
            attributes = self._source.xattrs(entry, self._namespaces)
            blob = self._packed(entry, attributes) if attributes else None
            yield (entry if blob is None else replace(entry, xattr=blob)), opener

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        return self._source.xattrs(entry, namespaces)

    def notes(self) -> tuple[str, ...]:
        """Return what was left out, and of which entries."""
        if not self._dropped:
            return ()
        reasons = ", ".join(f"{count} that {why}" for why, count in sorted(self._dropped.items()))
        return (f"extended attributes left out: {reasons} (such as {'; '.join(self._examples)})",)

    def _packed(self, entry: Entry, attributes: Mapping[bytes, bytes]) -> bytes | None:
        kept: dict[bytes, bytes] = {}
        for key in sorted(attributes):
            fault = _fault(key, attributes[key])
            if fault is None and len(kept) == MOST:
                fault = f"came after the first {MOST} of their entry"
            if fault is None:
                kept[key] = attributes[key]
                continue
            self._dropped[fault] += 1
            if len(self._examples) < _NAMED_AT_MOST:
                self._examples.append(f"{printable(key)[:80]} of {printable(entry.path or '.')}")
        return pack_xattrs(kept)


def _fault(key: bytes, value: bytes) -> str | None:
    if not key or len(key) > MOST or b"\0" in key:
        return f"have no name of 1 to {MOST} bytes"
    return f"are longer than {MOST} bytes" if len(value) > MOST else None


def _bad(detail: str) -> FormatError:
    return FormatError("extended attributes", detail)


_MOST_DIGITS = 20  # before they become a number; there may be zeros in front
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class IdMap:
    """Map of numbers; ``default`` is for those without a rule, None leaves them."""

    rules: Mapping[int, int] = field(default_factory=dict)
    default: int | None = None

    def __getitem__(self, number: int) -> int:
        return self.rules.get(number, number if self.default is None else self.default)

    @classmethod
    def parse(cls, text: str, name: str = "owner map") -> IdMap:
        """Read a map file called ``name``; of several rules for one id the last holds. Raises FormatError."""
        rules: dict[int, int] = {}
        default: int | None = None
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            words = line.split()
            if len(words) != 2 or not _is_id(words[1]) or not (words[0] == "*" or _is_id(words[0])):
                problem = f"{line[:_SHOWN]!r} is not a rule; write two ids, as in '1001 0', or '* 0' for all others"
                raise FormatError(f"{name}, line {number}", problem)
            if words[0] == "*":
                default = int(words[1])
            else:
                rules[int(words[0])] = int(words[1])
        return cls(rules, default)

    def format(self) -> str:
        """The text that :meth:`parse` reads."""
        lines = [f"{owner} {other}\n" for owner, other in sorted(self.rules.items())]
        return "".join(lines) + ("" if self.default is None else f"* {self.default}\n")


@dataclass(frozen=True, slots=True)
class OwnerMap:
    """Maps for user and group ids; an empty one changes nothing."""

    users: IdMap = field(default_factory=IdMap)
    groups: IdMap = field(default_factory=IdMap)

    def of(self, uid: int, gid: int) -> tuple[int, int]:
        return self.users[uid], self.groups[gid]


def fixed(uid: int, gid: int) -> OwnerMap:
    """Everything to one owner."""
    return OwnerMap(IdMap(default=uid), IdMap(default=gid))


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) <= _LARGEST_ID


PATH_BYTES = 4095
_LARGEST_ID = 0xFFFFFFFF
_LARGEST_TIME = 1 << 53
_MOUNTED = re.compile(rb"/cvmfs/[^/]+\.[^/]+(?=/|\Z)")
_PATH = re.compile(COMPONENT + rb"(?:/" + COMPONENT + rb")*")


class EntryKind(Enum):
    """Kind of an entry; the value is the word that messages use."""

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
    """A member of a tree. ``path`` is relative to the tree's root, which is ``""`` itself.

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
    """Limits of a tree; ``file_bytes`` in one file, 0 for as many as in all.

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
