"""Counters: what each kind of entry adds, and exact sums."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.schema import NAMES, Counts, Statistics

CONTENT = hash_bytes(b"x")
numbers = st.integers(min_value=-(2**40), max_value=2**40)
counts = st.builds(Counts, *[numbers] * len(NAMES))


@pytest.mark.parametrize(
    ("entry", "chunks", "expected"),
    [
        (Dirent("d", stat.S_IFDIR, size=4096), 0, Counts(dir=1)),
        (Dirent("d", stat.S_IFDIR, size=4096, mountpoint=True), 0, Counts(dir=1)),
        (Dirent("f", stat.S_IFREG, size=7, hash=CONTENT), 0, Counts(regular=1, file_size=7)),
        (
            Dirent("f", stat.S_IFREG, size=9, chunked=True),
            3,
            Counts(regular=1, file_size=9, chunked=1, chunks=3, chunked_size=9),
        ),
        (
            Dirent("f", stat.S_IFREG, size=5, hash=CONTENT, external=True, xattr=b"\x01\x00"),
            0,
            Counts(regular=1, file_size=5, external=1, external_file_size=5, xattr=1),
        ),
        (Dirent("l", stat.S_IFLNK, size=6, symlink="target"), 0, Counts(symlink=1)),
        (Dirent("c", stat.S_IFCHR, size=259), 0, Counts(special=1)),
        (Dirent("p", stat.S_IFIFO), 0, Counts(special=1)),
    ],
)
def test_each_kind_of_entry_adds_what_stock_tools_count(entry: Dirent, chunks: int, expected: Counts) -> None:
    assert Counts.of(entry, chunks) == expected
    assert expected.entries == 1


@given(counts, counts)
def test_what_is_added_can_be_taken_away_again(one: Counts, other: Counts) -> None:
    assert one + other - other == one
    assert one + other == other + one
    assert one - one == Counts()


@given(st.lists(counts, min_size=1, max_size=5))
def test_a_sum_is_that_of_every_column(many: list[Counts]) -> None:
    total = Counts()
    for one in many:
        total = total + one
    assert Counts.sum(many) == total
    assert total.as_dict() == {name: sum(getattr(one, name) for one in many) for name in NAMES}


def test_the_sum_of_nothing_is_nothing() -> None:
    assert Counts.sum([]) == Counts()


@given(counts, counts)
def test_the_total_of_a_catalog_is_its_own_and_what_is_below(own: Counts, below: Counts) -> None:
    assert Statistics(own, below).total == own + below
