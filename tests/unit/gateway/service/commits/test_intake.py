"""Object packs: what is written is read again in blocks of any size, and whatever is damaged is refused by name."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.gateway.service.commits.intake import (
    HEADER_TOO_BIG,
    MAX_HEADER_BYTES,
    MAX_OBJECTS,
    NAMED_OBJECT,
    PackError,
    PackHeader,
    PackObject,
    PackReader,
)
from tests.fakes.packs import Pack
from tests.fakes.refused import refused

HELLO, EMPTY = zlib.compress(b"hello\n"), zlib.compress(b"")
VECTOR = (
    b"V2\nS22\nN2\n--\nC 5798f7f4ca7585d850eea64610a1f73d8f8de7a3 14\nC e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78 8\n"
)
CONTENTS = st.lists(
    st.tuples(st.binary(max_size=300), st.sampled_from(list(Algorithm)), st.sampled_from(["", "P", "C"])), max_size=8
)


def pack_of(*contents: bytes) -> Pack:
    return Pack.of([(hash_bytes(one), one) for one in contents])


def read(data: bytes, pack: Pack, block: int = 1 << 20) -> list[tuple[ObjectHash, bytes]]:
    """The verified objects of a stream that is announced as ``pack``."""
    reader, found, held = PackReader(len(pack.header.format()), pack.digest), [], b""
    for start in range(0, len(data), block):
        for piece in reader.feed(data[start : start + block]):
            held += piece.data
            if piece.last:
                found.append((piece.object.hash, held))
                held = b""
    reader.finish()
    return found


def sent(pack: Pack) -> bytes:
    return b"".join(pack.blocks())


def test_the_header_of_two_objects_is_as_computed() -> None:
    pack = pack_of(HELLO, EMPTY)
    assert pack.header.format() == VECTOR
    assert len(VECTOR) == 104
    assert pack.digest == "77b10f5a596e27aeda417ed7e4df9aeea062d472"
    assert PackHeader.parse(VECTOR) == pack.header
    assert (pack.header.total, len(pack.header.objects)) == (22, 2)


@given(CONTENTS, st.integers(1, 500))
def test_a_pack_is_read_in_blocks_of_any_size(contents: list[tuple[bytes, Algorithm, str]], block: int) -> None:
    objects = [(hash_bytes(data, algorithm, suffix), data) for data, algorithm, suffix in contents]
    pack = Pack.of(objects)
    assert PackHeader.parse(pack.header.format()) == pack.header
    assert read(sent(pack), pack, block) == objects


def test_an_object_comes_in_pieces_and_is_called_complete_only_when_its_hash_was_found_right() -> None:
    data = bytes(1000)
    pack = pack_of(data)
    reader = PackReader(len(pack.header.format()), pack.digest)
    stream = sent(pack)
    seen = [piece for start in range(0, len(stream), 64) for piece in reader.feed(stream[start : start + 64])]
    assert [piece.last for piece in seen] == [False] * (len(seen) - 1) + [True]
    assert max(len(piece.data) for piece in seen) <= 64
    assert b"".join(piece.data for piece in seen) == data


def test_a_wrong_byte_in_an_object_is_found_before_it_is_complete() -> None:
    pack = pack_of(HELLO, EMPTY)
    data = bytearray(sent(pack))
    data[-1] ^= 1
    reader, complete = PackReader(len(VECTOR), pack.digest), []
    with refused(PackError):
        complete += [piece.object.hash for piece in reader.feed(bytes(data)) if piece.last]
    pieces = PackReader(len(VECTOR), pack.digest).feed(bytes(data))
    assert next(pieces).object.hash == hash_bytes(HELLO)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("cut", [1, 50, len(VECTOR), len(VECTOR) + 5, len(VECTOR) + 14, len(VECTOR) + 21])
def test_a_pack_that_ends_early_is_refused_also_at_the_border_of_an_object(cut: int, block: int) -> None:
    pack = pack_of(HELLO, EMPTY)
    with refused(PackError):
        read(sent(pack)[:cut], pack, block)


def test_the_message_says_in_bytes_what_is_missing() -> None:
    pack = pack_of(HELLO, EMPTY)
    with pytest.raises(PackError, match=r"ends 12 bytes too early, in object 5798f7f4.* after 10 of 14 bytes"):
        read(sent(pack)[:-12], pack)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_bytes_after_the_last_object_are_refused(block: int) -> None:
    for pack in (pack_of(HELLO, EMPTY), pack_of()):
        with refused(PackError):
            read(sent(pack) + b"x", pack, block)


def test_a_header_that_was_not_announced_is_refused() -> None:
    reader = PackReader(len(VECTOR), "0" * 40)
    with refused(PackError):
        list(reader.feed(VECTOR))
    with refused(PackError):
        list(PackReader(len(VECTOR) - 1, pack_of(HELLO, EMPTY).digest).feed(VECTOR))


def test_nothing_at_all_is_a_pack_without_objects() -> None:
    reader = PackReader(0, "da39a3ee5e6b4b0d3255bfef95601890afd80709")
    assert list(reader.feed(b"")) == []
    reader.finish()
    with refused(PackError):
        PackReader(0, "0" * 40)


LINE = "C 5798f7f4ca7585d850eea64610a1f73d8f8de7a3 14"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"V3\nS14\nN1\n--\n{LINE}\n", "begins with 'V3'"),
        (f"V2\nN1\nS14\n--\n{LINE}\n", "line 2"),
        (f"S14\nV2\nN1\n--\n{LINE}\n", "begins with 'S14'"),
        (f"V2\nS14\n--\nN1\n{LINE}\n", "line 4"),
        (f"V2\nS14\nN1\n{LINE}\n--\n", "line 4"),
        (f"V2\nS15\nN1\n--\n{LINE}\n", "adds up to 14"),
        (f"V2\nS14\nN2\n--\n{LINE}\n", "has 1 lines"),
        (f"V2\nS28\nN1\n--\n{LINE}\n{LINE}\n", "has 2 lines"),
        (f"V2\nS14\nN1\n--\n{LINE}", "inside a line"),
        (f"V2\nS14\nN1\n--\n{LINE} \n", "line 5"),
        ("V2\nS14\nN1\n", "before the index"),
        ("V2\nS-14\nN1\n--\nx\n", "line 2"),
        ("V2\nS014\nN1\n--\nx\n", "line 2"),
        ("V2\nS99999999999999999999\nN1\n--\nx\n", "line 2"),
        ("V2\nS14\nN1\n--\nC 5798f7f4ca7585d850eea64610a1f73d8f8de7a3 -14\n", "line 5"),
        ("V2\nS14\nN1\n--\nC ../../../../etc/passwd 14\n", "line 5"),
        ("V2\nS14\nN1\n--\nC 5798F7F4CA7585D850EEA64610A1F73D8F8DE7A3 14\n", "line 5"),
        ("V2\nS14\nN1\n--\nC 5798f7f4ca7585d850eea64610a1f73d8f8de7a3Z 14\n", "line 5"),
        ("V2\nS14\nN1\n--\nX 5798f7f4ca7585d850eea64610a1f73d8f8de7a3 14\n", "line 5"),
        ("V2\r\nS14\r\nN1\r\n--\r\n", "begins with"),
        ("V2\nS14\nN1\n--\nC é 14\n", "not text"),
    ],
)
def test_the_message_names_the_wrong_line_of_a_header(text: str, said: str) -> None:
    with pytest.raises(PackError, match=said):
        PackHeader.parse(text.encode())


def test_named_objects_are_refused_whatever_their_name() -> None:
    line = "N 5798f7f4ca7585d850eea64610a1f73d8f8de7a3 14 LmN2bWZzcHVibGlzaGVk"
    with refused(NAMED_OBJECT):
        PackHeader.parse(f"V2\nS14\nN1\n--\n{line}\n".encode())


def test_headers_have_limits_on_both_sides() -> None:
    with refused(HEADER_TOO_BIG):
        PackHeader.parse(f"V2\nS0\nN{MAX_OBJECTS + 1}\n--\n".encode())
    with refused(HEADER_TOO_BIG):
        PackReader(MAX_HEADER_BYTES + 1, "0" * 40)
    with refused(HEADER_TOO_BIG):
        PackHeader.parse(bytes(MAX_HEADER_BYTES + 1))
    with refused(HEADER_TOO_BIG):
        PackHeader((PackObject(hash_bytes(b""), 0),) * (MAX_OBJECTS + 1)).format()


MUTATED = st.tuples(st.integers(0, 200), st.binary(max_size=6), st.integers(0, 20))


@given(CONTENTS, st.lists(MUTATED, max_size=4), st.integers(1, 200))
def test_whatever_comes_is_either_the_pack_or_an_error_of_ours(
    contents: list[tuple[bytes, Algorithm, str]], changes: list[tuple[int, bytes, int]], block: int
) -> None:
    objects = [(hash_bytes(data, algorithm, suffix), data) for data, algorithm, suffix in contents]
    pack = Pack.of(objects)
    data = sent(pack)
    for place, put_in, taken_out in changes:
        data = data[:place] + put_in + data[place + taken_out :]
    try:
        found = read(data, pack, block)
    except PackError:
        return
    assert found == objects


@given(st.binary(max_size=200) | st.text("V2SNC-\n 0123456789abcdef", max_size=200).map(str.encode))
def test_any_header_is_read_or_refused(data: bytes) -> None:
    try:
        header = PackHeader.parse(data)
    except PackError:
        return
    assert header.format() == data or not data
