"""A zip file as a source: its directory and the bytes of its members. Whatever is malformed is refused.

Its own reader: the standard library's holds the whole directory in memory, cuts names at a NUL, and believes what the
members' own headers deny.
"""

from __future__ import annotations

import stat
import struct
import tempfile
import zlib
from calendar import timegm
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, NamedTuple

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.sources.archive import ArchiveBytes, ArchiveSource
from include.cvmfs.sources.source import (
    PATH_BYTES,
    Entry,
    EntryKind,
    Opener,
    checked_member,
    checked_numbers,
    checked_target,
    printable,
    refused,
)

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


class ZipSource(ArchiveSource):
    """The members of a zip archive, in the order of its directory."""

    packed = False

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


MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # a member, or the end of an archive without any
STORED, DEFLATED = 0, 8
METHODS = {
    1: "shrinking", 6: "imploding", 9: "deflate64", 12: "bzip2", 14: "LZMA",
    93: "Zstandard", 95: "xz", 98: "PPMd", 99: "AES",
}  # fmt: skip
ENCRYPTED = 0x0001 | 0x0040 | 0x2000
HEADER_BYTES = 30  # before each member's name
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END64_MAGIC, _LOCATOR64_MAGIC = b"PK\x06\x06", b"PK\x06\x07"
_LARGEST_COMMENT = 0xFFFF
_ZIP64, _NTFS, _TIMES, _OLD_TIMES, _NAME, _OWNERS = 0x0001, 0x000A, 0x5455, 0x5855, 0x7075, 0x7875
_EPOCH_1980 = 315_532_800
_NTFS_TO_UNIX_S = 11_644_473_600
_MASK16, _MASK32 = 0xFFFF, 0xFFFFFFFF
_READ_BYTES = 64 << 10
_GIVEN_AT_ONCE = 1 << 20


class Member(NamedTuple):
    """Facts about one member from the directory; sizes in bytes. ``attributes``: in the way of the system ``host``.

    ``raw``: the name as both headers have it; ``name``: in UTF-8, where a field of Info-ZIP has that, else the same.
    """

    raw: bytes
    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    host: int
    attributes: int
    mtime: int
    mtime_ns: int
    uid: int
    gid: int


class ZipMembers:
    """The members of a whole archive that lies in ``file``; ``archive`` had the bytes before and words complaints."""

    def __init__(self, file: IO[bytes], archive: ArchiveBytes) -> None:
        self._file = file
        self._archive = archive
        self._start, self._end, self._count = self._directory()

    @property
    def start(self) -> int:
        """Return where the directory begins: bytes that the members have to share."""
        return self._start

    def __iter__(self) -> Iterator[Member]:
        at = self._start
        for number in range(1, self._count + 1):
            member, at = self._member(at, number)
            yield member
        if at != self._end:
            raise self._archive.damaged("is damaged: its directory holds other members than it counts")

    def content(self, member: Member) -> MemberContent:
        """The bytes of a member, unpacked. Its own header must agree with the directory."""
        begin = member.offset + _LOCAL.size
        if begin <= self._start:
            header = _LOCAL.unpack(self.at(member.offset, _LOCAL.size))
            signature, flags, method, name_length, extra_length = header[0], header[2], header[3], *header[-2:]
            begin += name_length + extra_length
            same = (signature, method, flags & ENCRYPTED) == (_LOCAL_MAGIC, member.method, 0)
            inside = begin + member.packed <= self._start
            if same and inside and self.at(begin - name_length - extra_length, name_length) == member.raw:
                return MemberContent(self, member, begin)
        problem = "does not match the archive's directory; pack it again"
        raise self.refused(member.raw, problem)

    def at(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on."""
        self._file.seek(offset)
        data = self._file.read(length)
        if len(data) != length:
            raise self._archive.truncated()
        return data

    def refused(self, raw: bytes, detail: str) -> SourceError:
        """The error for one member."""
        return refused(self._archive.name, raw[:PATH_BYTES], detail)

    def _directory(self) -> tuple[int, int, int]:
        """Return where the directory begins and ends, and how many members it announces."""
        length = self._archive.received
        tail_start = max(0, length - _END.size - _LARGEST_COMMENT)
        tail = self.at(tail_start, length - tail_start)
        place = tail.rfind(_END_MAGIC)
        if place < 0 or len(tail) - place < _END.size:
            raise self._archive.truncated()
        _, disk, first_disk, here, count, size, offset, comment = _END.unpack_from(tail, place)
        end = tail_start + place
        if place + _END.size + comment != len(tail):
            raise self._archive.damaged("has bytes after its end")
        if _MASK16 in (disk, first_disk, here, count) or _MASK32 in (size, offset):
            end, (disk, first_disk, here, count, size, offset) = self._end64(end)
        if disk or first_disk or here != count:
            raise self._archive.damaged("is one of several parts")
        if offset + size != end:
            raise self._archive.damaged("has bytes before its first member, or within its directory")
        if count * _CENTRAL.size > size:
            raise self._archive.damaged("is damaged: it counts more members than its directory has room for")
        return offset, end, count

    def _end64(self, end: int) -> tuple[int, tuple[int, ...]]:
        """The end of an archive whose numbers did not fit: where it is, and what they are."""
        before = end - _LOCATOR64.size
        locator = self.at(before, _LOCATOR64.size) if before >= 0 else b""
        if locator.startswith(_LOCATOR64_MAGIC):
            place = _LOCATOR64.unpack(locator)[2]
            fields = _END64.unpack(self.at(place, _END64.size)) if place + _END64.size <= before else (b"",)
            if fields[0] == _END64_MAGIC:
                return place, fields[4:]
        raise self._archive.damaged("is damaged: it has no end of a large archive")

    def _member(self, at: int, number: int) -> tuple[Member, int]:
        """The entry of the directory at an offset, and the offset of the next one."""
        header = self.at(at, _CENTRAL.size) if at + _CENTRAL.size <= self._end else b""
        if not header.startswith(_CENTRAL_MAGIC):
            raise self._archive.damaged(f"is damaged: entry {number} of its directory cannot be read")
        (_, made_by, _, flags, method, dos_time, dos_date, crc, packed, size, name_length, extra_length, comment_length,
         disk, _, attributes, offset) = _CENTRAL.unpack(header)  # fmt: skip
        at += _CENTRAL.size
        following = at + name_length + extra_length + comment_length
        if following > self._end:
            raise self._archive.damaged(f"is damaged: entry {number} of its directory cannot be read")
        raw, extra = self.at(at, name_length), self.at(at + name_length, extra_length)
        fields = _Fields(raw, dos_date, dos_time)
        numbers = fields.read(extra, [size, packed, offset].count(_MASK32))
        if numbers is None or disk not in (0, _MASK16):
            raise self.refused(raw, "has fields that cannot be read; pack the archive again")
        size, packed, offset = (numbers.pop(0) if value == _MASK32 else value for value in (size, packed, offset))
        member = Member(
            raw, fields.name, flags, method, crc, packed, size, offset, made_by >> 8, attributes,
            fields.mtime, fields.mtime_ns, fields.uid, fields.gid,
        )  # fmt: skip
        return member, following


class MemberContent:
    """The bytes of one member; length and checksum are right when the last one was given."""

    def __init__(self, members: ZipMembers, member: Member, begin: int) -> None:
        self._members = members
        self._member = member
        self._at = begin
        self._packed = member.packed
        self._left = member.size
        self._crc = 0
        self._buffer = b""
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS) if member.method == DEFLATED else None
        if not self._left:
            self._finish()

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, all that is left if negative. Raises SourceError."""
        if size < 0:
            return b"".join(iter(lambda: self._some(_GIVEN_AT_ONCE), b""))
        return self._some(size) if size else b""

    def close(self) -> None:
        pass

    def _some(self, size: int) -> bytes:
        data = b""
        while self._left and not data:
            data = self._next(min(size, self._left))
        if data:
            self._left -= len(data)
            self._crc = zlib.crc32(data, self._crc)
            if not self._left:
                self._finish()
        return data

    def _next(self, size: int) -> bytes:
        stored = self._buffer or self._stored(_READ_BYTES if self._inflater else size)
        if self._inflater is None:
            data = stored
        else:
            try:
                data = self._inflater.decompress(stored, size)
            except zlib.error as fault:
                raise self._damaged("cannot be unpacked") from fault
            self._buffer = self._inflater.unconsumed_tail
        if not data and (not stored or (self._inflater and self._inflater.eof)):
            raise self._damaged("is shorter than the archive's directory has it")
        return data

    def _stored(self, size: int) -> bytes:
        count = min(size, self._packed)
        data = self._members.at(self._at, count) if count else b""
        self._at += count
        self._packed -= count
        return data

    def _finish(self) -> None:
        if self._crc != self._member.crc or self._more():
            raise self._damaged("does not have the length and checksum of the archive's directory")

    def _more(self) -> bool:
        """Tell whether something comes after the last byte that was announced."""
        inflater = self._inflater
        while inflater is not None and not inflater.eof:
            stored = self._buffer or self._stored(_READ_BYTES)
            try:
                # Without input, too: the end of the stream may have been taken, but not been examined.
                if inflater.decompress(stored, 1) or not (stored or inflater.eof):
                    return True
            except zlib.error:
                return True
            self._buffer = inflater.unconsumed_tail
        return bool(self._packed or (inflater and inflater.unused_data))

    def _damaged(self, problem: str) -> SourceError:
        return self._members.refused(self._member.raw, f"{problem}; fetch or pack the archive again")


class _Fields:
    """Fields of packers' own: times that are not local, owners, and names in UTF-8."""

    def __init__(self, raw: bytes, dos_date: int, dos_time: int) -> None:
        self.name = raw
        self.mtime = _unix_time(dos_date, dos_time)
        self.mtime_ns = 0
        self.uid = self.gid = 0

    def read(self, extra: bytes, wide: int) -> list[int] | None:
        """Take them; gives the ``wide`` numbers that did not fit elsewhere, None for what cannot be read."""
        numbers: list[int] | None = None if wide else []
        rank = 0  # of the field that the time is from
        at = 0
        while len(extra) - at >= 4:
            identifier, length = struct.unpack_from("<HH", extra, at)
            data = extra[at + 4 : at + 4 + length]
            at += 4 + length
            if len(data) < length or (identifier == _ZIP64 and length < 8 * wide):
                return None
            if identifier == _ZIP64 and wide:
                numbers = list(struct.unpack_from(f"<{wide}Q", data))
            elif identifier == _TIMES and length >= 5 and data[0] & 1:
                self.mtime, self.mtime_ns, rank = struct.unpack_from("<i", data, 1)[0], 0, 3
            elif identifier == _NTFS and length >= 16 and rank < 2:
                rank = 2 if self._read_ntfs(data) else rank
            elif identifier == _OLD_TIMES and length >= 8 and not rank:
                self.mtime, rank = struct.unpack_from("<i", data, 4)[0], 1
            elif identifier == _NAME and length >= 6 and data[0] == 1:
                self._read_name(data)
            elif identifier == _OWNERS and length >= 3 and data[0] == 1:
                self._read_owners(data)
        return numbers

    def _read_ntfs(self, data: bytes) -> bool:
        tag, size = struct.unpack_from("<HH", data, 4)
        if tag != 1 or size < 8:
            return False
        seconds, ticks = divmod(struct.unpack_from("<Q", data, 8)[0], 10_000_000)
        self.mtime, self.mtime_ns = seconds - _NTFS_TO_UNIX_S, ticks * 100
        return True

    def _read_name(self, data: bytes) -> None:
        """Take the name in UTF-8, unless another program renamed the member and left the field as it was."""
        if struct.unpack_from("<I", data, 1)[0] == zlib.crc32(self.name):
            self.name = data[5:]

    def _read_owners(self, data: bytes) -> None:
        users = data[1]
        groups = data[2 + users] if len(data) > 2 + users else 0
        if users and groups and len(data) >= 3 + users + groups:
            self.uid = int.from_bytes(data[2 : 2 + users], "little")
            self.gid = int.from_bytes(data[3 + users : 3 + users + groups], "little")


def _unix_time(date: int, time: int) -> int:
    """Return Unix seconds as if in UTC, since the zone is not stored; invalid days count as the first of all."""
    year, month, day = 1980 + (date >> 9), date >> 5 & 15, date & 31
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return _EPOCH_1980
    return timegm((year, month, day, time >> 11 & 31, time >> 5 & 63, (time & 31) * 2))
