"""An object is handed out only if it has the hash that it is named by."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import FormatError, LibraryMissing, ObjectDamaged, ObjectMissing
from include.cvmfs.format import catalogs, objects
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compression, Compressor, compress, compress_database, decompress, load, stream
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


# -- compression


@pytest.mark.parametrize(
    ("content", "stored"), [(b"", "789c030000000001"), (b"hello\n", "789ccb48cdc9c9e70200084b021f")]
)
def test_stored_bytes_are_those_of_the_stock_tools(content: bytes, stored: str) -> None:
    assert compress(content) == bytes.fromhex(stored)


@given(st.binary(max_size=2000), st.sampled_from(Compressor))
def test_what_is_stored_is_read_back(content: bytes, how: Compressor) -> None:
    stored = compress(content, how)
    assert decompress(stored, how.compression) == content
    assert decompress(stored, how.compression, limit=len(content)) == content


@pytest.mark.parametrize("how", [Compressor.FAST, Compressor.BALANCED])
@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 16, 5 << 20])
def test_every_zlib_reads_what_other_libraries_make(how: Compressor, size: int) -> None:
    text = b"".join(b"%d %d\n" % (number, number * number % 977) for number in range(size // 8))[:size]
    for content in (text, random.Random(size).randbytes(size), bytes(size)):
        stored = compress(content, how)
        assert zlib.decompress(stored) == content
        assert len(stored) <= len(content) + len(content) // 1000 + 64


def test_an_empty_file_is_the_object_of_the_stock_tools_by_every_compressor() -> None:
    assert {compress(b"", how) for how in Compressor} == {compress(b""), b""}


def test_a_library_that_is_missing_is_named_with_what_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setattr(objects, "_compressing", objects._compressing.__wrapped__)
    assert not Compressor.FAST.is_there
    with refused(LibraryMissing) as error:
        compress(b"x", Compressor.FAST)
    assert "compression: stock" in str(error.value)
    assert Compressor.STOCK.is_there


def test_a_database_is_a_zlib_stream_also_where_the_faster_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"SQLite format 3" + bytes(range(256)) * 99
    assert zlib.decompress(compress_database(content)) == content
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    monkeypatch.setattr(objects, "_compressing", objects._compressing.__wrapped__)
    monkeypatch.setattr(objects, "_of_databases", objects._of_databases.__wrapped__)
    assert compress_database(content) == compress(content)


@given(st.binary(min_size=1, max_size=500), st.sampled_from(Compressor), st.data())
def test_more_than_the_limit_does_not_come_out(content: bytes, how: Compressor, data: st.DataObject) -> None:
    limit = data.draw(st.integers(min_value=0, max_value=len(content) - 1))
    with pytest.raises(FormatError):
        decompress(compress(content, how), how.compression, limit=limit)


@given(st.binary(max_size=300), st.data())
def test_a_damaged_stream_is_an_error_or_the_same_content(content: bytes, data: st.DataObject) -> None:
    stored = bytearray(compress(content))
    place = data.draw(st.integers(min_value=0, max_value=len(stored) - 1))
    stored[place] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    try:
        found = decompress(bytes(stored), limit=1 << 20)
    except FormatError:
        return
    assert found == content  # a bit that a reader may ignore, as the level in the header


@pytest.mark.parametrize("library", [objects.inflating, zlib])
@pytest.mark.parametrize("stored", [compress(b"hello\n")[:-1], compress(b"hello\n") + b"x", b"hello\n", b""])
def test_what_is_damaged_is_refused(stored: bytes, library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "inflating", library)
    with refused(FormatError, what="zlib stream"):
        decompress(stored)


def test_a_catalog_that_unpacks_to_more_than_is_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "CATALOG_BYTES", 1 << 16)
    store, packed = MemoryStore(), compress(bytes((1 << 16) + 1))
    name = hash_bytes(packed, Algorithm.SHA1, CATALOG)
    store.put(name.key, packed)
    with refused(FormatError, what="zlib stream"):
        CatalogCache(store).database(name)


def test_a_catalog_under_another_name_is_damaged() -> None:
    store = MemoryStore()
    name = hash_bytes(b"another", Algorithm.SHA1, CATALOG)
    store.put(name.key, compress(b"content"))
    with pytest.raises(ObjectDamaged):
        CatalogCache(store).database(name)
