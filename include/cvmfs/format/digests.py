"""A set of object identities in few bytes: a publisher remembers millions of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import DIGEST_BYTES, ObjectHash

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
