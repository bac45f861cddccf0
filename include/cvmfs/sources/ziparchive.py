"""A zip archive as a source of a tree: stored and deflated members, with zip64 and the Unix fields of Info-ZIP.

A zip lists at its end what is in it, so it is first kept in a temporary file, and its sum is right before it is read.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import IO, BinaryIO

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.sources.archive import ArchiveBytes
from include.cvmfs.sources.source import (
    PATH_BYTES,
    Entry,
    EntryKind,
    Opener,
    SourceLimits,
    checked_member,
    checked_numbers,
    checked_target,
    printable,
    refused,
)
from include.cvmfs.sources.zipmembers import DEFLATED, ENCRYPTED, HEADER_BYTES, METHODS, STORED, Member, ZipMembers

_KEPT_IN_MEMORY = 4 << 20
_UNIX_HOSTS = frozenset({3, 19})
_DOS = 0
_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
}


class ZipSource:
    """The members of an archive, in the order of its directory. Parameters are those of ``TarSource``."""

    def __init__(
        self,
        stream: BinaryIO | Iterable[bytes],
        name: str,
        *,
        sha256: str | None = None,
        size: int | None = None,
        limits: SourceLimits | None = None,
    ) -> None:
        self.name = name
        self._limits = limits or SourceLimits()
        self._bytes = ArchiveBytes(stream, name, sha256=sha256, size=size, limits=limits, packed=False)
        self._sha256: str | None = None

    @property
    def sha256(self) -> str | None:
        return self._sha256

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        with tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY, prefix="nightshift-zip-") as file:
            self._keep(file)
            members = ZipMembers(file, self._bytes)
            claimed = used = 0
            for member in members:
                claimed += member.size
                used += HEADER_BYTES + len(member.raw) + member.packed
                if used > members.start:
                    problem = "overlaps other members, as in archive bombs; pack the archive again"
                    raise refused(self.name, member.raw[:PATH_BYTES], problem)
                self._refuse_bombs(claimed)
                entry = self._entry(members, member)
                yield entry, partial(members.content, member) if entry.kind is EntryKind.FILE else None

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:  # noqa: ARG002 - has none
        return {}

    def _keep(self, file: IO[bytes]) -> None:
        """All of the archive into the file; its length and sum are right, or nothing is read from it."""
        try:
            for block in self._bytes:
                if self._bytes.received > self._limits.bytes:
                    problem = f"is beyond the limit of {self._limits.bytes} bytes"
                    raise SOURCE_LIMIT_EXCEEDED(printable(self.name), f"{problem}; split the tree or raise the limit")
                file.write(block)
        except OSError as fault:
            cure = "free space in the folder for temporary files, or set TMPDIR to another one"
            raise SourceError(printable(self.name), f"cannot be kept ({fault.strerror}); {cure}") from fault
        self._sha256 = self._bytes.verify()

    def _refuse_bombs(self, claimed: int) -> None:
        if claimed > self._limits.ratio_from and claimed > self._limits.ratio * self._bytes.received:
            problem = f"unpacks to more than {self._limits.ratio} times its size, as archive bombs do"
            raise SOURCE_LIMIT_EXCEEDED(printable(self.name), f"{problem}; raise the limit if this is meant")

    def _entry(self, members: ZipMembers, member: Member) -> Entry:
        raw = member.raw
        if member.host == _DOS and b"\\" in raw:
            problem = "has a backslash in its name, as some programs write for a slash"
            raise refused(self.name, raw[:PATH_BYTES], f"{problem}; pack the archive again with slashes")
        path = checked_member(member.name, self.name)
        mode = member.attributes >> 16 if member.host in _UNIX_HOSTS else 0
        kind = self._kind(member, mode, path)
        if member.flags & ENCRYPTED:
            raise refused(self.name, path, "is encrypted; pack the archive again without a password")
        if member.method not in (STORED, DEFLATED):
            method = METHODS.get(member.method, "a method that is not known")
            problem = f"is packed by {method} (method {member.method}); members must be stored or deflated"
            raise refused(self.name, path, f"{problem}; pack the archive again by these")
        checked_numbers(path, self.name, uid=member.uid, gid=member.gid, mtime=member.mtime)
        usual = 0o755 if kind is EntryKind.DIRECTORY else 0o644
        return Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(mode) if mode else usual,
            mtime=member.mtime,
            uid=member.uid,
            gid=member.gid,
            size=member.size if kind is EntryKind.FILE else 0,
            symlink=self._target(members, member, path) if kind is EntryKind.SYMLINK else "",
            mtime_ns=member.mtime_ns,
        )

    def _kind(self, member: Member, mode: int, path: str) -> EntryKind:
        """Known by the mode where there is one, and by a slash at the end of the name, which directories have."""
        closed = member.name.endswith((b"/", b"/."))
        plain = EntryKind.DIRECTORY if closed else EntryKind.FILE
        kind = _KINDS.get(stat.S_IFMT(mode)) if stat.S_IFMT(mode) else plain
        if kind is None:
            raise refused(self.name, path, "is a device, whose number a zip cannot hold; pack it again without it")
        if closed is not (kind is EntryKind.DIRECTORY) and path:
            problem = f"is a {kind.value} by its attributes, but not by its name"
            raise refused(self.name, path, f"{problem}; pack the archive again")
        if member.size and kind not in (EntryKind.FILE, EntryKind.SYMLINK):
            raise refused(self.name, path, f"is a {kind.value} with content; pack the archive again")
        return kind

    def _target(self, members: ZipMembers, member: Member, path: str) -> str:
        if member.size > PATH_BYTES:
            raise refused(self.name, path, f"has a link target of more than {PATH_BYTES} bytes; make the link again")
        return checked_target(members.content(member).read(), path, self.name)
