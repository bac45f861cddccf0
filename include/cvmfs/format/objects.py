"""Content-addressed objects: ways to compress them, and to read them, where each has the hash that it is named by.

Compressed objects are zlib streams, and do not tell which library made them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, partial
from typing import Any

from include.cvmfs.errors import FormatError, LibraryMissing, ObjectDamaged, ObjectMissing
from include.cvmfs.format.hashes import DIGEST_BYTES, Algorithm, ObjectHash, hash_bytes
from include.storage.errors import NotFound
from include.storage.store import Store


def _inflating() -> Any:
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib
    return zlib_ng


inflating = _inflating()
"""The library that unpacks; zlib-ng takes a fifth of zlib's time for a catalog."""


class Compression(Enum):
    """The value is that of bits 11-13 of a catalog row's flags."""

    ZLIB = 0
    NONE = 1


class Compressor(Enum):
    """Makers of objects. Equal content becomes another object by each, and by another version or processor perhaps."""

    FAST = "fast"
    """ISA-L at level 3."""
    BALANCED = "balanced"
    """zlib-ng at level 6."""
    STOCK = "stock"
    """zlib at level 6, as in the stock tools."""
    NONE = "none"

    @property
    def compression(self) -> Compression:
        """The form of the objects."""
        return Compression.NONE if self is Compressor.NONE else Compression.ZLIB

    @property
    def is_there(self) -> bool:
        """State of its library: installed or not."""
        try:
            self.require()
        except LibraryMissing:
            return False
        return True

    def require(self) -> None:
        """Raises LibraryMissing where its library is not installed."""
        _compressing(self)


def compress(data: bytes, how: Compressor = Compressor.STOCK) -> bytes:
    """Make the stored bytes of a content. Raises LibraryMissing."""
    if not data and how is not Compressor.NONE:
        how = Compressor.STOCK  # an empty file is the same object everywhere: a cache judges an empty one by its name
    return _compressing(how)(data)


def compress_database(data: bytes) -> bytes:
    """Make the stored bytes of a catalog or a history: by zlib-ng where it is installed, in half the time of zlib.

    Unlike a file's content, no stock publisher makes the same database, so no object is shared less by that.
    """
    return compress(data, _of_databases())


@cache
def _of_databases() -> Compressor:
    return Compressor.BALANCED if Compressor.BALANCED.is_there else Compressor.STOCK


@cache
def _compressing(how: Compressor) -> Callable[[bytes], bytes]:
    # the libraries are needed by publishers only, and there is not one for every machine
    try:
        if how is Compressor.FAST:
            from isal import isal_zlib

            return partial(isal_zlib.compress, level=3)
        if how is Compressor.BALANCED:
            from zlib_ng import zlib_ng

            return partial(zlib_ng.compress, level=6)
    except ImportError as fault:
        raise LibraryMissing(how.value, fault) from fault
    return bytes if how is Compressor.NONE else zlib.compress


def decompress(data: bytes, how: Compression = Compression.ZLIB, *, limit: int | None = None) -> bytes:
    """Undo :func:`compress`; at most ``limit`` bytes come out. Raises FormatError on damage, excess, trailing bytes."""
    if how is Compression.NONE:
        if limit is not None and len(data) > limit:
            raise FormatError("object", f"{len(data)} bytes where {limit} are allowed")
        return data
    stream = inflating.decompressobj()
    try:
        out: bytes = stream.decompress(data, 0 if limit is None else limit + 1)
    except inflating.error as fault:
        raise FormatError("zlib stream", str(fault)) from fault
    if limit is not None and len(out) > limit:
        raise FormatError("zlib stream", f"holds more than the {limit} bytes that are allowed")
    if not stream.eof or stream.unused_data:
        raise FormatError("zlib stream", "truncated" if not stream.eof else "bytes follow its end")
    return out


_BLOCK = 1 << 20


def load(store: Store, name: ObjectHash, how: Compression = Compression.ZLIB, *, limit: int | None = None) -> bytes:
    """The content of an object, at most ``limit`` bytes of it.

    Raises ObjectMissing, ObjectDamaged (also for a stream that cannot be undone or is longer), StoreError.
    """
    try:
        stored = store.get(name.key)
    except NotFound:
        raise ObjectMissing(name.key) from None
    if hash_bytes(stored, name.algorithm).digest != name.digest:
        raise ObjectDamaged(name.key)
    try:
        return decompress(stored, how, limit=limit)
    except FormatError as fault:
        raise ObjectDamaged(name.key, f"its content cannot be read ({fault})") from fault


def stream(store: Store, name: ObjectHash, how: Compression, *, size: int, block: int = _BLOCK) -> Iterator[bytes]:
    """The content in pieces, for objects of any size; ``size``: bytes, as in the catalog.

    The last piece is handed out after the hash was found right. Raises ObjectMissing, ObjectDamaged, StoreError.
    """
    digest, unpack = Hasher(name.algorithm), _Unpacker(how)
    held, total = b"", 0
    try:
        for stored in store.stream(name.key, block=block):
            digest.update(stored)
            for piece in unpack.feed(stored, block):
                total += len(piece)
                if total > size:
                    raise ObjectDamaged(name.key, f"holds more than the {size} bytes in its catalog")
                if held:
                    yield held
                held = piece
    except NotFound:
        raise ObjectMissing(name.key) from None
    except inflating.error as fault:
        raise ObjectDamaged(name.key, f"its content cannot be read ({fault})") from fault
    if digest.finish() != name.digest:
        raise ObjectDamaged(name.key)
    if not unpack.complete:
        raise ObjectDamaged(name.key, "its compressed stream is cut short or followed by other bytes")
    if total != size:
        raise ObjectDamaged(name.key, f"holds {total} bytes, its catalog has {size}")
    if held:
        yield held


class Hasher:
    """The digest of what is fed to it, by the algorithm of an object's name."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._state: Any = hashlib.new(_NAMES[algorithm], usedforsecurity=False)
        self._size = (DIGEST_BYTES,) if algorithm is Algorithm.SHAKE128 else ()
        self.update: Callable[[bytes], None] = self._state.update

    def finish(self) -> bytes:
        digest: bytes = self._state.digest(*self._size)
        return digest


_NAMES = {Algorithm.SHA1: "sha1", Algorithm.RMD160: "ripemd160", Algorithm.SHAKE128: "shake_128"}


class _Unpacker:
    def __init__(self, how: Compression) -> None:
        self._state = None if how is Compression.NONE else inflating.decompressobj()

    @property
    def complete(self) -> bool:
        return self._state is None or (self._state.eof and not self._state.unused_data)

    def feed(self, stored: bytes, block: int) -> Iterator[bytes]:
        if self._state is None:
            yield stored  # is as big as it came
            return
        # Pieces of bounded size: a few stored bytes may unpack to very many.
        while stored and not self._state.eof:
            yield self._state.decompress(stored, block)
            stored = self._state.unconsumed_tail
