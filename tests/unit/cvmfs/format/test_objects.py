"""An object is handed out only if it has the hash that it is named by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.cvmfs.errors import ObjectDamaged, ObjectMissing
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compression, compress, load, stream
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

CONTENT = b"what was published"
OTHER = b"something other.. "  # of the same size
Read = Callable[[MemoryStore, ObjectHash], bytes]


def streamed(store: MemoryStore, name: ObjectHash) -> bytes:
    return b"".join(stream(store, name, Compression.ZLIB, size=len(CONTENT)))


@pytest.mark.parametrize("read", [load, streamed])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_an_object_is_what_was_stored(read: Read, algorithm: Algorithm) -> None:
    store, packed = MemoryStore(), compress(CONTENT)
    name = hash_bytes(packed, algorithm)
    store.put(name.key, packed)
    assert read(store, name) == CONTENT


@pytest.mark.parametrize("read", [load, streamed])
def test_a_whole_object_under_the_name_of_another_is_damaged(read: Read) -> None:
    store, name = MemoryStore(), hash_bytes(compress(CONTENT), Algorithm.SHA1)
    store.put(name.key, compress(OTHER))
    with refused(ObjectDamaged, key=name.key):
        read(store, name)


@pytest.mark.parametrize("read", [load, streamed])
def test_an_object_that_is_not_in_the_store_is_missing(read: Read) -> None:
    name = hash_bytes(compress(CONTENT), Algorithm.SHA1)
    with refused(ObjectMissing, key=name.key):
        read(MemoryStore(), name)
