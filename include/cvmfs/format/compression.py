"""How objects are stored: zlib streams at the default level, or as they are (docs/formats.md, object names)."""

from __future__ import annotations

import zlib
from enum import Enum

from include.cvmfs.errors import FormatError


class Compression(Enum):
    """The value is that of bits 11-13 of a catalog row's flags."""

    ZLIB = 0
    NONE = 1


def compress(data: bytes, how: Compression = Compression.ZLIB) -> bytes:
    return data if how is Compression.NONE else zlib.compress(data)


def decompress(data: bytes, how: Compression = Compression.ZLIB, *, limit: int | None = None) -> bytes:
    """Undo :func:`compress`; at most ``limit`` bytes come out. Raises FormatError on damage, excess, trailing bytes."""
    if how is Compression.NONE:
        if limit is not None and len(data) > limit:
            raise FormatError("object", f"{len(data)} bytes where {limit} are allowed")
        return data
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, 0 if limit is None else limit + 1)
    except zlib.error as fault:
        raise FormatError("zlib stream", str(fault)) from fault
    if limit is not None and len(out) > limit:
        raise FormatError("zlib stream", f"holds more than the {limit} bytes that are allowed")
    if not stream.eof or stream.unused_data:
        raise FormatError("zlib stream", "truncated" if not stream.eof else "bytes follow its end")
    return out
