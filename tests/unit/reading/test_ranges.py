"""Ranges are joined, packed and placed whatever order and form they have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from include.reading.errors import FailureKind, ReplicaFailure
from include.reading.ranges import (
    MOST_HEADER,
    MOST_RANGES,
    ContentRange,
    MultipartReply,
    RangeBuffers,
    empty_total,
    header_of,
    joined,
    packed,
)

RANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=40)


@given(RANGES, st.integers(0, 100))
def test_joined_ranges_are_in_order_apart_and_cover_what_was_asked_for(ranges: list[tuple[int, int]], gap: int) -> None:
    result = joined(ranges, gap)
    assert all(first + length + gap < second for (first, length), (second, _) in pairwise(result))
    for offset, length in ranges:
        assert not length or any(begin <= offset and offset + length <= begin + size for begin, size in result)


@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 2**40)), min_size=1, max_size=400))
def test_a_request_has_few_ranges_and_a_short_header(ranges: list[tuple[int, int]]) -> None:
    groups = list(packed(ranges))
    assert [one for group in groups for one in group] == ranges
    assert all(len(group) <= MOST_RANGES and len(header_of(group)) <= MOST_HEADER + 6 for group in groups)
    assert " " not in header_of(ranges)


@given(RANGES, st.integers(0, 2**32))
def test_bytes_arrive_in_any_order_and_size_and_are_all_placed(ranges: list[tuple[int, int]], seed: int) -> None:
    draw = random.Random(seed)
    content = draw.randbytes(6000)
    buffers = RangeBuffers(ranges)
    total = sum(length for _, length in buffers.missing())
    taken = 0
    while missing := buffers.missing():
        offset, length = draw.choice(missing)
        begin = max(0, offset - draw.choice((0, 0, 50)))
        end = min(len(content), offset + draw.randint(1, length) + draw.choice((0, 0, 50)))
        taken += buffers.put(begin, content[begin:end])
    assert taken == total
    assert [buffers.take(one) for one in ranges] == [content[offset : offset + length] for offset, length in ranges]
    assert buffers.put(0, content) == 0


@pytest.mark.parametrize(
    "text", ["", "bytes", "bytes 5-4/10", "bytes 0-10/10", "items 0-1/2", "bytes 0-1/2 x", "bytes -1-2/3", "bytes */10"]
)
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ReplicaFailure) as caught:
        ContentRange.parse(text)
    assert caught.value.kind is FailureKind.WRONG


def test_places() -> None:
    assert ContentRange.parse(" Bytes 5-9/10 ") == ContentRange(5, 5, 10)
    assert ContentRange.parse("bytes 0-0/*") == ContentRange(0, 1, None)
    assert (empty_total("bytes */0"), empty_total("bytes 0-1/2")) == (0, None)


def reply(body: bytes, step: int = 7) -> Iterator[bytes]:
    return (body[at : at + step] for at in range(0, len(body), step))


HEAD = b"--b\r\nContent-Type: x/y\r\nContent-Range: bytes 10-12/100\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_parts_are_taken_apart_however_they_arrive(step: int) -> None:
    body = b"\r\n" + HEAD + b"abc\r\n" + HEAD.replace(b"10-12", b"20-20") + b"\n\r\n--b--\r\n"
    parts = MultipartReply(reply(body, step), "b", 3).parts()
    assert [(place.offset, b"".join(blocks)) for place, blocks in parts] == [(10, b"abc"), (20, b"\n")]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"--b\r\n\r\nabc\r\n--b--\r\n", FailureKind.WRONG),
        (HEAD + b"ab", FailureKind.CUT),
        (b"", FailureKind.CUT),
        (b"--c\r\n", FailureKind.WRONG),
        (b"x" * 20_000, FailureKind.WRONG),
        ((HEAD + b"abc\r\n") * 5, FailureKind.WRONG),
        (b"--b\r\n" + b"A: b\r\n" * 1000, FailureKind.WRONG),
    ],
)
def test_a_body_that_is_none_is_refused(body: bytes, kind: FailureKind) -> None:
    parts = MultipartReply(reply(body), "b", 3).parts()
    with pytest.raises(ReplicaFailure) as caught:
        b"".join(block for _, blocks in parts for block in blocks)
    assert caught.value.kind is kind
