"""A tar archive as a source of a tree: ustar, pax and GNU long names, read as a stream without unpacking to disk.

Its own reader of headers: the standard library's takes a damaged header in mid-archive for the end of it, stops before
what follows the end, and takes twice the time per member.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from include.cvmfs.errors import SourceError
from include.cvmfs.sources.archive import ArchiveBytes, ArchiveSource, Reader
from include.cvmfs.sources.source import (
    Entry,
    EntryKind,
    Opener,
    checked_member,
    checked_numbers,
    checked_target,
    printable,
    refused,
)

_BLOCK = 512
_ADLER = 65_521
_END = bytes(_BLOCK)
_LARGEST_EXTENSION = 1 << 20
_DEVICE_BITS = 12, 20  # of major and minor numbers
_XATTR, _XATTR_BASE64 = b"SCHILY.xattr.", b"LIBARCHIVE.xattr."
_KINDS = {
    b"0": EntryKind.FILE,
    b"\0": EntryKind.FILE,
    b"7": EntryKind.FILE,
    b"1": EntryKind.HARDLINK,
    b"2": EntryKind.SYMLINK,
    b"3": EntryKind.CHARACTER_DEVICE,
    b"4": EntryKind.BLOCK_DEVICE,
    b"5": EntryKind.DIRECTORY,
    b"6": EntryKind.FIFO,
}
_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL = b"L", b"K", b"x", b"X", b"g"
_EXTENDED = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL})
_UNREAD = {
    b"S": ("a sparse file", "without --sparse"),
    b"V": ("a volume label", "without --label"),
    b"D": ("an incremental dump directory", "without --listed-incremental and --incremental"),
    b"M": ("the rest of a file that begins in another volume", "without --multi-volume"),
    b"N": ("a list of long names of GNU tar before 1.11", "by a newer tar"),
    b"A": ("an access control list of Solaris", "without them (no -p)"),
    b"E": ("an extended attribute of Solaris", "without them (no -@)"),
    b"I": ("an inode without its content", "by GNU tar, bsdtar or pax"),
}
_OTHER_FORMATS = {
    b"BZh": "a bzip2 file",
    b"\x1f\x9d": "a file of compress (.Z)",
    b"\x04\x22\x4d\x18": "an lz4 file",
    b"\x5d\0\0": "an lzma file",
    b"LZIP": "an lzip file",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"!<arch>\n": "an ar archive or Debian package",
    b"\xed\xab\xee\xdb": "an RPM package",
    b"0707": "a cpio archive",
    b"PK\x07\x08": "one part of a zip archive",
    b"#!": "a program (a script, .pyz or self-extracting archive)",
    b"\x7fELF": "a program (perhaps a self-extracting archive)",
    b"MZ": "a program (perhaps a self-extracting archive)",
}


@dataclass(slots=True)
class _Extension:
    """Facts about a member from the headers before its own."""

    name: bytes | None = None
    target: bytes | None = None
    size: int | None = None
    mtime: int | None = None
    mtime_ns: int = 0
    uid: int | None = None
    gid: int | None = None
    sparse: bool = False
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


_NOTHING = _Extension()


class TarSource(ArchiveSource):
    """The members of a tar archive, in its order."""

    _global: _Extension
    _xattrs: dict[bytes, bytes]

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        try:
            yield from self._members()
        finally:
            self._bytes.close()

    def _members(self) -> Iterator[tuple[Entry, Opener | None]]:
        self._global, self._xattrs = _Extension(), {}
        reader = Reader(iter(self._bytes))
        member = _Member(reader, self._bytes)
        extension = _NOTHING
        count = 0
        while (header := self._header(reader, count)) is not None:
            count += 1
            flag = header[156:157]
            kind = _KINDS.get(flag)
            if kind is None:
                extension = self._extended(flag, header, reader, extension)
                continue
            entry = self._entry(kind, header, extension)
            self._xattrs = extension.xattrs
            extension = _NOTHING
            if entry.kind is EntryKind.FILE:
                member.left = entry.size
                yield entry, member.open
                if not reader.skip(member.left + -entry.size % _BLOCK):
                    raise self._bytes.truncated()
            else:
                yield entry, None
        if extension is not _NOTHING:
            raise self._bytes.truncated()
        self._finish(reader)

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:  # noqa: ARG002 - the current
        return {name: value for name, value in self._xattrs.items() if name.startswith(namespaces)}

    def _header(self, reader: Reader, count: int) -> bytes | None:
        header = reader.take(_BLOCK)
        if header == _END:
            return None
        if count and not header:
            raise self._bytes.damaged("is truncated: it ends after a member, without the blocks of zeros at its end")
        if len(header) < _BLOCK and (count or header.startswith(b"\0") or not header):
            raise self._bytes.truncated()
        stored = _octal(header[148:156])
        if len(header) < _BLOCK or stored is None or not _sums_up(header, stored):
            raise self._no_header(header, stored, count)
        return header

    def _no_header(self, header: bytes, stored: int | None, count: int) -> SourceError:
        if len(header) == _BLOCK and stored is not None and stored == _signed_sum(header):
            problem = "the sums of its headers are of signed bytes, as some old tars write them"
            return SourceError(self._bytes.name, f"{problem}; pack the tree again by GNU tar, bsdtar or pax")
        if count:
            return self._bytes.damaged(f"is damaged: header {count + 1} has a wrong checksum")
        kinds = (kind for magic, kind in _OTHER_FORMATS.items() if header.startswith(magic))
        kind = next((f"is {kind}, " for kind in kinds), "is ")
        packings = "not a tar archive, plain or in .gz, .xz or .zst, and no zip"
        return SourceError(self._bytes.name, f"{kind}{packings}; pack the tree as one of these")

    def _entry(self, kind: EntryKind, header: bytes, extension: _Extension) -> Entry:
        raw = _text(header[:100]) if extension.name is None else extension.name
        if extension.name is None and header[257:263] == b"ustar\0" and header[345]:
            raw = _text(header[345:500]) + b"/" + raw
        if raw.endswith((b"/", b"/.")) and kind is EntryKind.FILE:
            if header[156]:
                raise refused(self.name, raw, "is a regular file with a slash after its name; pack the tree again")
            kind = EntryKind.DIRECTORY  # as archives before 1988 wrote directories
        path = checked_member(raw, self.name)
        if extension.sparse:
            raise refused(self.name, path, "is stored as a sparse file; pack the tree again without --sparse")
        size = extension.size
        timed = self._global if extension.mtime is None else extension
        mtime, mtime_ns = timed.mtime, timed.mtime_ns
        uid = self._global.uid if extension.uid is None else extension.uid
        gid = self._global.gid if extension.gid is None else extension.gid
        mode, device = _number(header[100:108]), 0
        if kind is not EntryKind.FILE:
            size = 0
        elif size is None:
            size = _number(header[124:136])
        uid = _number(header[108:116]) if uid is None else uid
        gid = _number(header[116:124]) if gid is None else gid
        mtime = _number(header[136:148]) if mtime is None else mtime
        if size is None or mode is None or uid is None or gid is None or mtime is None or size < 0:
            raise refused(self.name, path, "has a header with a number that cannot be read; pack the tree again")
        checked_numbers(path, self.name, uid=uid, gid=gid, mtime=mtime)
        symlink = hardlink_to = ""
        if kind is EntryKind.SYMLINK or kind is EntryKind.HARDLINK:
            target = _text(header[157:257]) if extension.target is None else extension.target
            if kind is EntryKind.SYMLINK:
                symlink = checked_target(target, path, self.name)
            else:
                hardlink_to = self._hardlink_target(target, path)
        elif kind is EntryKind.CHARACTER_DEVICE or kind is EntryKind.BLOCK_DEVICE:
            device = self._device(header, path)
        return Entry(path, kind, mode & 0o7777, mtime, uid, gid, size, symlink, hardlink_to, device, mtime_ns)

    def _device(self, header: bytes, member: str) -> int:
        major, minor = _number(header[329:337]), _number(header[337:345])
        if major is None or minor is None or major >> _DEVICE_BITS[0] or minor >> _DEVICE_BITS[1]:
            raise refused(self.name, member, "has a device number that cannot be; pack the tree again without it")
        return os.makedev(major, minor)

    def _hardlink_target(self, raw: bytes, member: str) -> str:
        try:
            return checked_member(raw, self.name)
        except SourceError as fault:
            problem = f"is a hard link to {printable(raw)!r}, which is outside the tree"
            raise refused(self.name, member, f"{problem}; pack the tree again without it") from fault

    def _extended(self, flag: bytes, header: bytes, reader: Reader, before: _Extension) -> _Extension:
        extension = _Extension() if before is _NOTHING else before
        if flag in _UNREAD:
            kind, remedy = _UNREAD[flag]
            raise refused(self.name, _text(header[:100]), f"is {kind}; pack the tree again {remedy}")
        if flag not in _EXTENDED:
            problem = f"is of the unknown type {printable(flag)!r}"
            raise refused(self.name, _text(header[:100]), f"{problem}; pack the tree again as ustar, pax or GNU tar")
        size = _number(header[124:136])
        if size is None or not 0 <= size <= _LARGEST_EXTENSION:
            problem = f"has an extended header of more than {_LARGEST_EXTENSION} bytes"
            raise refused(self.name, _text(header[:100]), f"{problem}; pack the tree again")
        data = reader.take(size)
        if len(data) < size or not reader.skip(-size % _BLOCK):
            raise self._bytes.truncated()
        if flag == _LONG_NAME:
            extension.name = _text(data)
        elif flag == _LONG_LINK:
            extension.target = _text(data)
        elif flag == _PAX_GLOBAL:
            self._read_pax(data, self._global)
            # Whatever else it holds, no two members can share a name, a target or a size.
            self._global.name = self._global.target = self._global.size = None
            self._global.xattrs.clear()
            return before
        else:
            self._read_pax(data, extension)
        return extension

    def _read_pax(self, data: bytes, extension: _Extension) -> None:
        at = 0
        while at < len(data):
            space = data.find(b" ", at, at + 8)
            length = data[at:space]
            end = at + int(length) if space > at and length.isdigit() else at
            key, equals, value = data[space + 1 : end - 1].partition(b"=")
            if space < 0 or end <= space or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
                raise self._bytes.damaged("is damaged: an extended header cannot be read")
            at = end
            if key == b"path":
                extension.name = value
            elif key == b"linkpath":
                extension.target = value
            elif key.startswith(b"GNU.sparse."):
                extension.sparse = True
            elif key in (b"size", b"uid", b"gid"):
                setattr(extension, key.decode(), self._pax_number(key, value)[0])
            elif key == b"mtime":
                extension.mtime, extension.mtime_ns = self._pax_number(key, value)
            elif key.startswith(_XATTR):
                extension.xattrs[key.removeprefix(_XATTR)] = value
            elif key.startswith(_XATTR_BASE64):
                extension.xattrs.setdefault(unquote_to_bytes(key.removeprefix(_XATTR_BASE64)), self._base64(value))

    def _base64(self, value: bytes) -> bytes:
        try:
            return base64.b64decode(value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4), validate=True)
        except binascii.Error:
            raise self._bytes.damaged("is damaged: an extended attribute cannot be read") from None

    def _pax_number(self, key: bytes, value: bytes) -> tuple[int, int]:
        """The whole number below or at the value, and the billionths that come to it."""
        whole, _, fraction = value.partition(b".")
        digits = whole.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > 20 or (fraction and not fraction.isdigit()):
            raise self._bytes.damaged(f"is damaged: invalid extended header {printable(key + b'=' + value[:40])}")
        # Digits beyond the ninth are cut off; what is before 1970 is counted from the second below.
        number, billionths = int(digits), int(fraction[:9].ljust(9, b"0"))
        if not whole.startswith(b"-"):
            return number, billionths
        if fraction[9:].strip(b"0"):
            billionths += 1
        return (-number - 1, 1_000_000_000 - billionths) if billionths else (-number, 0)

    def _finish(self, reader: Reader) -> None:
        while block := reader.some(1 << 20):
            if block.strip(b"\0"):
                raise self._bytes.damaged("has bytes after the end of its last member")
        self._sha256 = self._bytes.verify()


class _Member:
    """Reads the current member; one object serves all of them in turn."""

    def __init__(self, reader: Reader, archive: ArchiveBytes) -> None:
        self.left = 0
        self._reader = reader
        self._bytes = archive

    def open(self) -> _Member:
        return self

    def read(self, size: int = -1, /) -> bytes:
        count = self.left if size < 0 else min(size, self.left)
        data = self._reader.take(count) if count else b""
        if len(data) < count:
            raise self._bytes.truncated()
        self.left -= count
        return data

    def close(self) -> None:
        pass


def _sums_up(header: bytes, stored: int) -> bool:
    """Tell whether all bytes, those of the checksum counted as blanks, add up to it; Adler's low half is one more."""
    expected = stored - 8 * 32 + sum(header[148:156])
    return zlib.adler32(header) & 0xFFFF == (expected + 1) % _ADLER and 0 <= expected <= 255 * _BLOCK


def _signed_sum(header: bytes) -> int:
    counted = header[:148] + b" " * 8 + header[156:]
    return sum(byte - (byte >> 7 << 8) for byte in counted)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _octal(field: bytes) -> int | None:
    digits = field.partition(b"\0")[0].strip(b" ")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


@lru_cache(1024)  # modes, owners and times are mostly those of the member before
def _number(field: bytes) -> int | None:
    """Octal digits, or (first bit set) a big-endian two's complement."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big")
        bits = 8 * len(field)
        return value - (1 << bits) if field[0] & 0x40 else value - (1 << (bits - 1))
    return _octal(field)
