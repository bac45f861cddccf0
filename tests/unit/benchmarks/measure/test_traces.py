"""Traces: those of real files are read, and those that are made are like them."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from hypothesis import given, strategies as st

from include.benchmarks.measure.traces import VectorRead, make_trace, read_trace, write_trace

ROOT_FILE = Path(__file__).parent / "root-17-of-60.jsonl"
"""A ROOT file of uproot: 400,000 entries, 60 branches of floats and one of integers, of which 17 are read."""
ROOT_SIZE = 91_359_574
RANGES = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 30)), max_size=20)


@given(RANGES, st.integers(0, 1000))
def test_a_read_is_the_same_after_it_was_written(ranges: list[tuple[int, int]], think_ms: int) -> None:
    read = VectorRead(tuple(ranges), think_ms)
    assert VectorRead.parse(read.format()) == read
    assert read.bytes == sum(length for _, length in ranges)


def test_the_trace_of_a_root_file_is_three_reads_of_its_head_and_one_a_cluster() -> None:
    reads = read_trace(ROOT_FILE)
    assert [len(read.ranges) for read in reads] == [1] * 3 + [17] * 100
    assert max(offset + length for read in reads for offset, length in read.ranges) <= ROOT_SIZE
    assert 0.25 < sum(read.bytes for read in reads) / ROOT_SIZE < 0.35


def test_a_made_trace_is_like_that_of_a_real_file(tmp_path: Path) -> None:
    real, made = read_trace(ROOT_FILE)[3:], list(make_trace(ROOT_SIZE))
    assert {len(read.ranges) for read in made} == {17}
    assert 0.9 < len(made) / len(real) < 1.1
    for trace in (real, made):
        lengths = [length for read in trace for _, length in read.ranges]
        assert 13_000 < median(lengths) < 17_000
    assert made == list(make_trace(ROOT_SIZE)), "every campaign reads the same"
    assert made != list(make_trace(ROOT_SIZE, seed=1))
    write_trace(tmp_path / "trace", made)
    assert read_trace(tmp_path / "trace") == made


@given(st.integers(0, 1 << 22), st.integers(1, 40), st.integers(100, 20_000), st.floats(0.01, 1))
def test_a_made_trace_stays_within_the_file(size: int, baskets: int, basket_bytes: int, share: float) -> None:
    for read in make_trace(size, baskets=baskets, basket_bytes=basket_bytes, share=share):
        ends = [offset + length for offset, length in read.ranges]
        assert ends == sorted(ends)
        assert ends[-1] <= size
