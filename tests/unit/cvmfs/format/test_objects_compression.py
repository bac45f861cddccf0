"""Objects are stored byte for byte as stock tools store them, and damaged ones are noticed."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.objects import Compression, compress, decompress
from tests.fakes.refused import refused


@pytest.mark.parametrize(
    ("content", "stored"), [(b"", "789c030000000001"), (b"hello\n", "789ccb48cdc9c9e70200084b021f")]
)
def test_stored_bytes_are_those_of_the_stock_tools(content: bytes, stored: str) -> None:
    assert compress(content) == bytes.fromhex(stored)


@given(st.binary(max_size=2000), st.sampled_from(Compression))
def test_what_is_stored_is_read_back(content: bytes, how: Compression) -> None:
    stored = compress(content, how)
    assert decompress(stored, how) == content
    assert decompress(stored, how, limit=len(content)) == content


@given(st.binary(min_size=1, max_size=500), st.sampled_from(Compression), st.data())
def test_more_than_the_limit_does_not_come_out(content: bytes, how: Compression, data: st.DataObject) -> None:
    limit = data.draw(st.integers(min_value=0, max_value=len(content) - 1))
    with pytest.raises(FormatError):
        decompress(compress(content, how), how, limit=limit)


def test_a_bomb_is_not_unpacked_beyond_its_limit() -> None:
    bomb = zlib.compress(bytes(1 << 24))
    with refused(FormatError, what="zlib stream"):
        decompress(bomb, limit=1000)


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


@pytest.mark.parametrize("stored", [compress(b"hello\n")[:-1], compress(b"hello\n") + b"x", b"hello\n", b""])
def test_what_is_damaged_is_refused(stored: bytes) -> None:
    with refused(FormatError, what="zlib stream"):
        decompress(stored)
