"""A directory entry as a value, and its row in the catalog table (docs/formats.md, catalogs)."""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Any

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import DIGEST_BYTES, PARTIAL, Algorithm, ObjectHash
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.paths import bytes_of_name

COLUMNS = ("hardlinks", "hash", "size", "mode", "mtime", "mtimens", "flags", "name", "symlink", "uid", "gid", "xattr")
_ALGORITHMS = (Algorithm.SHA1, Algorithm.RMD160, Algorithm.SHAKE128)
_ALGORITHM_BITS = {algorithm: place << 8 for place, algorithm in enumerate(_ALGORITHMS)}
_LINKCOUNT_BITS = 32


_NUMBER = ("a number", (int, float))
_KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "hash": ("bytes", bytes), "name": ("text", str), "symlink": ("text", str), "xattr": ("bytes", bytes),
}  # fmt: skip
_MAY_BE_NULL = frozenset({"hash", "mtimens", "xattr"})


class Flag(IntFlag):
    """The bits of column ``flags``, but for the two numbers in it (hash algorithm 8-10, compression 11-13)."""

    DIRECTORY = 0x1
    MOUNTPOINT = 0x2
    FILE = 0x4
    SYMLINK = 0x8
    SPECIAL = 0x10
    NESTED_ROOT = 0x20
    CHUNKED = 0x40
    EXTERNAL = 0x80
    BIND = 0x4000
    HIDDEN = 0x8000
    DIRECT_IO = 0x10000


# Plain numbers: reading a row would take thrice as long with the members themselves.
_MOUNTPOINT, _SYMLINK, _NESTED_ROOT = Flag.MOUNTPOINT.value, Flag.SYMLINK.value, Flag.NESTED_ROOT.value
_CHUNKED, _EXTERNAL, _BIND = Flag.CHUNKED.value, Flag.EXTERNAL.value, Flag.BIND.value
_HIDDEN, _DIRECT_IO = Flag.HIDDEN.value, Flag.DIRECT_IO.value


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a chunked file: place and length in the uncompressed file in bytes, and its own object."""

    offset: int
    size: int
    hash: ObjectHash


@dataclass(frozen=True, slots=True)
class Dirent:
    """An entry. ``size``: bytes uncompressed (devices: their number); ``mtime``: Unix s; ``mode``: with type bits."""

    name: str
    mode: int
    size: int = 0
    mtime: int = 0
    uid: int = 0
    gid: int = 0
    hash: ObjectHash | None = None
    symlink: str = ""
    linkcount: int = 1
    hardlink_group: int = 0
    mountpoint: bool = False
    nested_root: bool = False
    chunked: bool = False
    external: bool = False
    bind: bool = False
    hidden: bool = False
    direct_io: bool = False
    algorithm: Algorithm = Algorithm.SHA1
    compression: Compression = Compression.ZLIB
    xattr: bytes | None = None
    mtime_ns: int | None = None

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def kind(self) -> str:
        """The kind of the entry, as messages call it."""
        if self.is_directory:
            return "directory"
        if self.is_symlink:
            return "symbolic link"
        return "file" if self.is_regular else "special file"

    @property
    def is_special(self) -> bool:
        return not (self.is_directory or self.is_regular or self.is_symlink)

    def changed(self, **fields: Any) -> Dirent:
        return replace(self, **fields)

    @property
    def flags(self) -> int:
        if self.is_directory:
            flags = Flag.DIRECTORY | (Flag.MOUNTPOINT if self.mountpoint else 0) | (Flag.BIND if self.bind else 0)
            flags |= Flag.NESTED_ROOT if self.nested_root else 0
        else:
            flags = Flag.FILE | (Flag.SYMLINK if self.is_symlink else 0) | (Flag.SPECIAL if self.is_special else 0)
        if self.is_regular:
            flags |= (Flag.CHUNKED if self.chunked else 0) | (Flag.EXTERNAL if self.external else 0)
            flags |= Flag.DIRECT_IO if self.direct_io else 0
            flags |= self.compression.value << 11
            if self.hash or self.chunked:
                flags |= _ALGORITHM_BITS[self.algorithm]
        return int(flags | (Flag.HIDDEN if self.hidden else 0))

    def to_row(self) -> tuple[Any, ...]:
        """The columns of :data:`COLUMNS`, in that order."""
        return (
            self.hardlink_group << _LINKCOUNT_BITS | self.linkcount,
            self.hash.digest if self.hash else None,
            self.size,
            self.mode,
            self.mtime,
            self.mtime_ns,
            self.flags,
            self.name,
            self.symlink,
            self.uid,
            self.gid,
            self.xattr,
        )

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Dirent:
        """Read the columns of :data:`COLUMNS`. Raises FormatError for values that no catalog may hold."""
        hardlinks, digest, size, mode, mtime, mtimens, flags, name, symlink, uid, gid, xattr = row
        try:
            algorithm = algorithm_of(flags)
            compression = Compression(flags >> 11 & 7)
            content = ObjectHash(digest_of(digest), algorithm) if digest else None
            return cls(
                name=name if type(name) is str else _text(name),
                mode=_mode(mode),
                size=len(bytes_of_name(symlink)) if flags & _SYMLINK else _size(size),
                mtime=int(mtime),
                uid=int(uid),
                gid=int(gid),
                hash=content,
                symlink=symlink or "",
                linkcount=hardlinks & 0xFFFFFFFF,
                hardlink_group=hardlinks >> _LINKCOUNT_BITS,
                mountpoint=bool(flags & _MOUNTPOINT),
                nested_root=bool(flags & _NESTED_ROOT),
                chunked=bool(flags & _CHUNKED),
                external=bool(flags & _EXTERNAL),
                bind=bool(flags & _BIND),
                hidden=bool(flags & _HIDDEN),
                direct_io=bool(flags & _DIRECT_IO),
                algorithm=algorithm,
                compression=compression,
                xattr=_blob(xattr) if xattr is not None else None,
                mtime_ns=None if mtimens is None else int(mtimens),
            )
        except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as fault:
            raise FormatError("catalog row", f"entry {name!r}: {_wrong_cell(row) or fault}") from fault

    def chunk_hash(self, digest: bytes) -> ObjectHash:
        """The hash of one of this file's chunks; algorithm and suffix follow from the file's row."""
        return ObjectHash(digest, self.algorithm, PARTIAL)


def algorithm_of(flags: int) -> Algorithm:
    """The algorithm of a row's hash and chunks. Raises IndexError."""
    return _ALGORITHMS[flags >> 8 & 7]


def digest_of(value: object) -> bytes:
    """The bytes of a column that holds a hash. Raises ValueError."""
    digest = _blob(value)
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"a hash of {len(digest)} bytes")
    return digest


def _wrong_cell(row: tuple[Any, ...]) -> str | None:
    """The first column with a value that does not belong there."""
    for column, value in zip(COLUMNS, row, strict=True):
        word, kind = _KINDS.get(column, _NUMBER)
        if value is None and column not in _MAY_BE_NULL:
            return f"{column} is NULL"
        if value is not None and not isinstance(value, kind):
            return f"{column} is not {word}"
    return None


def _text(value: object) -> str:
    raise TypeError(f"a name that is {type(value).__name__}")


def _blob(value: object) -> bytes:
    if not isinstance(value, bytes):  # of a number, bytes() would make as many zeros
        raise ValueError(f"{type(value).__name__} where bytes belong")
    return value


def _size(value: Any) -> int:
    size = int(value)
    if size >> 63 not in (0, -1):  # out of a number with a point, which a column takes as it is
        raise ValueError("a size of more than 63 bits")
    return size


def _mode(value: Any) -> int:
    mode = int(value)
    if not 0 <= mode < 1 << 32:  # or stat would refuse it, wherever it is used
        raise ValueError(f"mode {mode}")
    return mode
