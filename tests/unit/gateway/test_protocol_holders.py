"""The holder of a lease is named, and the name is read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway.protocol import TaskName

words = st.text(alphabet="abcXYZ019_.~:+-", min_size=1, max_size=20)


@given(words, words, words, st.integers(-1, 9999), st.integers(0, 99))
def test_a_task_comes_back_from_its_name(dag: str, run: str, task: str, index: int, number: int) -> None:
    name = TaskName(dag, run, task, index, number)
    assert TaskName.parse(name.format()) == name


OTHERS = ["", "node7.example.org", "somebody@host", "10.0.0.1:4242", "a/b try 1", "a/b/c", "a/b/c try", "a/b/c try x"]


@pytest.mark.parametrize("text", [*OTHERS, "a/b/c[x] try 1", "a/b/c/d try 1", "a/b/c try 1\n"])
def test_any_other_holder_is_no_task(text: str) -> None:
    assert TaskName.parse(text) is None


@given(st.text(max_size=60))
def test_whatever_stands_there_is_read_or_none(text: str) -> None:
    found = TaskName.parse(text)
    assert found is None or TaskName.parse(found.format()) == found
