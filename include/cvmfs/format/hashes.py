"""Content hashes and digests, names of objects in a store, and path hashes (docs/formats.md, object names and
catalogs)."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from include.cvmfs.errors import FormatError
from include.cvmfs.format.paths import bytes_of_name

_PREFIX_BYTES = 2
_KEY = re.compile(r"data/([0-9a-f]{2})/([0-9a-f]{38}(?:-[a-z0-9]+)?[A-Z]?)")


def identity(hash_: ObjectHash) -> bytes:
    """The identity of an object in a store: the digest, and the suffix letter of those that have one."""
    return hash_.digest + hash_.suffix.encode()


def hash_of_key(key: str) -> ObjectHash:
    """The object that is stored under a key, the other way round than ``ObjectHash.key``. Raises FormatError."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise FormatError("object key", f"{key[:80]!r} is not that of a content-addressed object")
    return ObjectHash.parse(match[1] + match[2])


class DigestSet:
    """A set of identities, about 25 bytes each at a million (a Python set takes four times as much)."""

    def __init__(self, identities: Iterable[bytes] = ()) -> None:
        self._buckets: dict[bytes, dict[bytes, bytearray]] = {}
        self._count = 0
        for key in identities:
            self.add(key)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, bytes) or len(item) < DIGEST_BYTES:
            return False
        tails = self._tails(item)
        return tails is not None and _holds(tails, item[_PREFIX_BYTES:DIGEST_BYTES])

    def first_bytes(self) -> set[int]:
        """With which bytes the identities begin; perhaps those of forgotten ones too."""
        return {prefix[0] for buckets in self._buckets.values() for prefix in buckets}

    def add(self, key: bytes) -> bool:
        """Remember an identity; False if it was there already."""
        tail = key[_PREFIX_BYTES:DIGEST_BYTES]
        tails = self._tails(key)
        if tails is None:
            self._buckets.setdefault(key[DIGEST_BYTES:], {})[key[:_PREFIX_BYTES]] = bytearray(tail)
        elif _holds(tails, tail):
            return False
        else:
            tails += tail
        self._count += 1
        return True

    def discard(self, key: bytes) -> None:
        """Forget an identity, if it is there."""
        tails, tail = self._tails(key), key[_PREFIX_BYTES:DIGEST_BYTES]
        place = tails.find(tail) if tails else -1
        while tails and place >= 0 and place % len(tail):
            place = tails.find(tail, place + 1)
        if tails and place >= 0:
            del tails[place : place + len(tail)]
            self._count -= 1

    def _tails(self, key: bytes) -> bytearray | None:
        buckets = self._buckets.get(key[DIGEST_BYTES:])
        return None if buckets is None else buckets.get(key[:_PREFIX_BYTES])


def _holds(tails: bytearray, tail: bytes) -> bool:
    place = tails.find(tail)
    while place >= 0 and place % len(tail):
        place = tails.find(tail, place + 1)
    return place >= 0


DIGEST_BYTES = 20
_TEXT = re.compile(r"([0-9a-f]{40})(-rmd160|-shake128)?([PCHXMLT])?")


class Algorithm(Enum):
    """Content hash algorithms; the value is the id that follows the hex digits in text."""

    SHA1 = ""
    RMD160 = "-rmd160"
    SHAKE128 = "-shake128"

    @classmethod
    def named(cls, word: str) -> Algorithm:
        """The algorithm by its configuration word: ``sha1``, ``rmd160`` or ``shake128``."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise FormatError("hash algorithm", f"{word!r} is not sha1, rmd160 or shake128") from None


SHA1 = Algorithm.SHA1
CATALOG, CERTIFICATE, HISTORY, META, PARTIAL, PLAIN = "C", "X", "H", "M", "P", ""


@dataclass(frozen=True, slots=True)
class ObjectHash:
    """The hash of an object's stored bytes. The suffix is the kind of object and takes no part in the digest."""

    digest: bytes
    algorithm: Algorithm = SHA1
    suffix: str = ""

    @classmethod
    def parse(cls, text: str, *, suffix: str | None = None) -> ObjectHash:
        """Read ``<40 hex>[-algorithm][suffix letter]``; ``suffix`` replaces the letter. Raises FormatError."""
        match = _TEXT.fullmatch(text)
        if not match:
            raise FormatError("hash", f"{text[:80]!r} is not 40 hex digits with an algorithm id")
        letter = match[3] or "" if suffix is None else suffix
        return cls(bytes.fromhex(match[1]), Algorithm(match[2] or ""), letter)

    def __str__(self) -> str:
        return self.digest.hex() + self.algorithm.value

    def with_suffix(self, suffix: str) -> ObjectHash:
        return replace(self, suffix=suffix)

    @property
    def text(self) -> str:
        """The text with the suffix letter, as in file names and on the gateway's wire."""
        return self.digest.hex() + self.algorithm.value + self.suffix

    @property
    def key(self) -> str:
        """The object's key below the repository: ``data/<2 hex>/<38 hex><algorithm id><suffix>``."""
        digits = self.digest.hex()
        return f"data/{digits[:2]}/{digits[2:]}{self.algorithm.value}{self.suffix}"

    @property
    def is_null(self) -> bool:
        return not any(self.digest)


def hash_bytes(data: bytes, algorithm: Algorithm = SHA1, suffix: str = "") -> ObjectHash:
    """Hash ``data`` as it is stored (after compression)."""
    if algorithm is Algorithm.SHA1:
        digest = hashlib.sha1(data, usedforsecurity=False).digest()
    elif algorithm is Algorithm.SHAKE128:
        digest = hashlib.shake_128(data, usedforsecurity=False).digest(DIGEST_BYTES)
    else:
        digest = hashlib.new("ripemd160", data, usedforsecurity=False).digest()
    return ObjectHash(digest, algorithm, suffix)


def path_hash(path: str) -> tuple[int, int]:
    """MD5 of an absolute path (the root is ``""``) as two signed little-endian 64-bit integers."""
    first, second = struct.unpack("<qq", hashlib.md5(bytes_of_name(path), usedforsecurity=False).digest())
    return first, second
