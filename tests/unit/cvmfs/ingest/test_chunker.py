"""The chunker cuts where the stock tools cut, whatever the data and however it is fed."""

from __future__ import annotations

import functools
import hashlib
import random

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.ingest.chunker import Chunker, ChunkLimits
from tests.fakes.refused import refused
from tests.fakes.stockpublisher import cut_marks

MIB = 1 << 20
ONE_TWO_FOUR = [3958989, 5833591, 9098212, 11973166, 13446409, 14521675, 16058601, 17346385, 19617174]


@functools.cache
def hashed_counters() -> bytes:
    return b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(20 * MIB // 32))


def rolling_values(data: bytes) -> list[int]:
    x, values = 0, []
    for byte in data:
        x = ((x << 1) ^ byte) & 0xFFFFFFFF
        values.append(x)
    return values


def reference_marks(data: bytes, limits: ChunkLimits) -> list[int]:
    """The detector as it is described: byte by byte, with wrapping 32-bit signed arithmetic."""
    threshold = 4294967295 // limits.avg
    marks, last = [], 0
    while True:
        x = 0
        for position in range(last + limits.min - 32, min(last + limits.max, len(data))):
            x = ((x << 1) ^ data[position]) & 0xFFFFFFFF
            if position < last + limits.min:
                continue
            distance = ((x - 0x7FFFFFFF + 0x80000000) & 0xFFFFFFFF) - 0x80000000
            if distance == -0x80000000 or abs(distance) < threshold:
                break
        else:
            position = last + limits.max
        if position >= len(data):
            return marks
        marks.append(position)
        last = position


def pieces_of(data: bytes, limits: ChunkLimits, block: int) -> list[bytes]:
    chunker = Chunker(limits)
    pieces = []
    for start in range(0, len(data), block):
        pieces += chunker.feed(data[start : start + block])
    return pieces + chunker.finish()


def test_the_reference_has_the_known_rolling_values() -> None:
    assert rolling_values(bytes([5, 255, 0, 32, 27, 11, 87, 128])) == [5, 245, 490, 1012, 2035, 4077, 8077, 16282]


@pytest.mark.parametrize(
    ("limits", "marks"),
    [
        (ChunkLimits(4 * MIB, 8 * MIB, 16 * MIB), [4907099, 9633771, 14641844]),
        (ChunkLimits(MIB, 2 * MIB, 4 * MIB), ONE_TWO_FOUR),
    ],
)
def test_cut_marks_are_those_of_the_stock_detector(limits: ChunkLimits, marks: list[int]) -> None:
    data = hashed_counters()
    assert cut_marks(data, limits) == marks
    pieces = pieces_of(data, limits, 1 * MIB)
    assert [len(piece) for piece in pieces] == [
        end - start for start, end in zip([0, *marks], [*marks, len(data)], strict=True)
    ]


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_monotonous_data_is_cut_at_the_greatest_length(byte: bytes) -> None:
    assert cut_marks(byte * (50 * MIB)) == [16777216, 33554432, 50331648]


def test_defaults_are_those_of_the_stock_tools() -> None:
    assert ChunkLimits() == ChunkLimits(4194304, 8388608, 16777216)


def test_a_chunker_can_take_the_next_file() -> None:
    chunker = Chunker(ChunkLimits(32, 64, 128))
    data = random.Random(2).randbytes(5000)
    first = chunker.feed(data) + chunker.finish()
    assert chunker.feed(data) + chunker.finish() == first


@pytest.mark.parametrize("limits", [(31, 64, 128), (64, 64, 128), (64, 128, 128), (0, 0, 0)])
def test_limits_that_cannot_be_kept_are_refused(limits: tuple[int, int, int]) -> None:
    with refused(FormatError, what="chunk limits"):
        ChunkLimits(*limits)


LIMITS = st.sampled_from(
    [ChunkLimits(32, 33, 34), ChunkLimits(32, 64, 128), ChunkLimits(40, 300, 1000), ChunkLimits(64, 4096, 20000)]
)
# Single random bytes, and long runs: runs make the all-ones and near-middle values that random bytes hardly ever make.
DATA = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(1, 300)),
        st.builds(lambda unit, count: unit * count, st.binary(min_size=1, max_size=40), st.integers(1, 20)),
    ),
    max_size=25,
).map(b"".join)


@settings(max_examples=200)
@given(data=DATA, limits=LIMITS)
def test_marks_are_those_of_the_byte_by_byte_reference(data: bytes, limits: ChunkLimits) -> None:
    assert cut_marks(data, limits) == reference_marks(data, limits)


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), average=st.integers(8000, 2**28))
def test_marks_across_scanned_blocks_are_those_of_the_reference(seed: int, average: int) -> None:
    rng = random.Random(seed)
    runs = (bytes([rng.choice((1, 0x80, 0xFE, rng.randrange(256)))]) * rng.randrange(1, 9000) for _ in range(6))
    data = b"".join(run + rng.randbytes(rng.randrange(40, 6000)) for run in runs)
    limits = ChunkLimits(64, average, average * 2)
    assert cut_marks(data, limits) == reference_marks(data, limits)


@settings(max_examples=100)
@given(data=DATA, limits=LIMITS, block=st.integers(1, 700))
def test_pieces_do_not_depend_on_how_the_file_is_fed(data: bytes, limits: ChunkLimits, block: int) -> None:
    pieces = pieces_of(data, limits, block)
    assert b"".join(pieces) == data
    assert all(limits.min <= len(piece) <= limits.max for piece in pieces[:-1])
    ends = [sum(map(len, pieces[: count + 1])) for count in range(len(pieces) - 1)]
    assert ends == reference_marks(data, limits)


@pytest.mark.parametrize(
    "near", [0x7FFFFE00, 0x7FFFFE01, 0x7FFFFFFF, 0x80000000, 0x800001FD, 0x800001FE, 0xFFFFFFFF, 0xFFFFFFFE]
)
@pytest.mark.parametrize("place", [100, 32768 + 99, 32768 + 100, 70000])
def test_cut_values_are_exactly_those_of_the_default_limits(near: int, place: int) -> None:
    # 31 bytes of one bit each and one full byte spell the rolling value.
    last = 0xFE | (near & 1)
    bits = bytes(((near ^ last) >> (31 - bit)) & 1 for bit in range(31))
    data = random.Random(3).randbytes(place - 31) + bits + bytes([last]) + bytes(50)
    assert rolling_values(data)[place] == near
    is_cut = 0x7FFFFE01 <= near <= 0x800001FD or near == 0xFFFFFFFF
    assert (place in cut_marks(data, ChunkLimits(place, 8388608, 16777216))) == is_cut
    limits = ChunkLimits(100, 8388608, 16777216)
    assert cut_marks(data, limits) == reference_marks(data, limits)
