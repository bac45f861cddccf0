"""Tar archives made by hand, also those that no honest program would write."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

BLOCK = 512
END = bytes(2 * BLOCK)


@dataclass(frozen=True)
class Member:
    """``size`` and ``checksum`` are what the header claims; the right ones by default."""

    name: bytes
    data: bytes = b""
    type: bytes = b"0"
    target: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 1_700_000_000
    size: int | None = None
    checksum: int | None = None
    prefix: bytes = b""
    device: tuple[int, int] = (0, 0)

    def to_bytes(self) -> bytes:
        size = len(self.data) if self.size is None else self.size
        header = bytearray(BLOCK)
        header[0:100] = self.name[:100].ljust(100, b"\0")
        header[100:108] = b"%07o\0" % self.mode
        header[108:116] = b"%07o\0" % self.uid
        header[116:124] = b"%07o\0" % self.gid
        header[124:136] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
        header[136:148] = b"%011o\0" % self.mtime
        header[156:157] = self.type
        header[157:257] = self.target[:100].ljust(100, b"\0")
        header[257:265] = b"ustar\x0000"
        header[329:337], header[337:345] = b"%07o\0" % self.device[0], b"%07o\0" % self.device[1]
        header[345:500] = self.prefix.ljust(155, b"\0")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % (sum(header) if self.checksum is None else self.checksum)
        return bytes(header) + self.data + bytes(-len(self.data) % BLOCK)


def archive(members: Iterable[Member], end: bytes = END) -> bytes:
    return b"".join(member.to_bytes() for member in members) + end


def folder(name: str, **fields: object) -> Member:
    return Member(name.encode(), type=b"5", **{"mode": 0o755, **fields})  # type: ignore[arg-type]


def file(name: str, data: bytes = b"", **fields: object) -> Member:
    return Member(name.encode(), data, **fields)  # type: ignore[arg-type]


def symlink(name: str, target: str) -> Member:
    return Member(name.encode(), type=b"2", target=target.encode(), mode=0o777)


def hardlink(name: str, target: str) -> Member:
    return Member(name.encode(), type=b"1", target=target.encode())


def packed(
    folder_path: object,
    kind: str = "w",
    format: int = tarfile.PAX_FORMAT,  # noqa: A002
    change: Callable[[tarfile.TarInfo], tarfile.TarInfo] | None = None,
) -> bytes:
    """A directory packed by the standard library."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=kind, format=format) as tar:  # type: ignore[call-overload]
        tar.add(folder_path, arcname=".", filter=change)
    return out.getvalue()
