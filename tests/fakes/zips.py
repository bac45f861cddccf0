"""Zip archives made by hand, also those that no honest program would write."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

UNIX, DOS = 3, 0
DEFLATED = 8


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@dataclass(frozen=True)
class ZipMember:
    """``packed``, ``size``, ``crc`` and ``local_name`` are what the archive claims; the right ones by default."""

    name: bytes
    data: bytes = b""
    mode: int = 0o100644
    method: int = DEFLATED
    flags: int = 0
    host: int = UNIX
    extra: bytes = b""
    date: int = (2024 - 1980) << 9 | 5 << 5 | 17
    time: int = 13 << 11 | 45 << 5 | 15
    packed: bytes | None = None
    size: int | None = None
    crc: int | None = None
    local_name: bytes | None = None
    offset: int | None = None
    wide: bool = False
    comment: bytes = b""

    def stored(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return deflated(self.data) if self.method == DEFLATED else self.data


def zip_archive(
    members: Iterable[ZipMember], *, comment: bytes = b"", prefix: bytes = b"", wide: bool = False
) -> bytes:
    body, directory = bytearray(prefix), bytearray()
    count = 0
    for member in members:
        count += 1
        stored = member.stored()
        size = len(member.data) if member.size is None else member.size
        crc = zlib.crc32(member.data) if member.crc is None else member.crc
        offset = len(body) - len(prefix) if member.offset is None else member.offset
        local_name = member.name if member.local_name is None else member.local_name
        common = (member.flags, member.method, member.time, member.date, crc)
        body += struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, *common, len(stored), size, len(local_name), 4)
        body += local_name + b"\xff\xff\0\0" + stored
        extra, numbers = member.extra, (len(stored), size, offset)
        if member.wide:
            extra += struct.pack("<HHQQQ", 1, 24, size, len(stored), offset)
            numbers = (0xFFFFFFFF,) * 3
        directory += struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\1\2", member.host << 8 | 20, 20, *common, *numbers[:2], len(member.name),
            len(extra), len(member.comment), 0, 0, member.mode << 16, numbers[2],
        )  # fmt: skip
        directory += member.name + extra + member.comment
    start = len(body) - len(prefix)
    if wide:
        end64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), start)
        locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(body) + len(directory), 1)
        end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, len(comment))
        return bytes(body + directory) + end64 + locator + end + comment
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), start, len(comment))
    return bytes(body + directory) + end + comment


def times(mtime: int) -> bytes:
    """Info-ZIP's field of a modification time in UTC."""
    return struct.pack("<HHBi", 0x5455, 5, 1, mtime)


def ntfs(mtime_ns: int) -> bytes:
    ticks = mtime_ns // 100 + 11_644_473_600 * 10_000_000
    return struct.pack("<HHIHHQQQ", 0x000A, 32, 0, 1, 24, ticks, ticks, ticks)


def owners(uid: int, gid: int) -> bytes:
    return struct.pack("<HHBBIBI", 0x7875, 11, 1, 4, uid, 4, gid)
