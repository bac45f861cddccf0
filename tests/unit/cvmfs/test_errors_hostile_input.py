"""Whatever is read, written by whomever: damage ends in an error of its own subject, never in another.

`python -m tests.fuzz.run` is the same for longer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import DAMAGE, Damage
from tests.fuzz.readers import READERS, attempt

pytestmark = pytest.mark.slow

EXAMPLES = {"root catalog": 60, "nested catalog": 60, "swapped catalog": 60, "tar": 80, "zip": 80, "content index": 40}


@pytest.mark.parametrize("name", READERS)
def test_the_examples_are_read(name: str) -> None:
    for example in READERS[name].examples():
        READERS[name].read(example)


@pytest.mark.parametrize("name", READERS)
def test_damaged_examples_are_read_or_refused(name: str) -> None:
    refused = []

    @settings(max_examples=EXAMPLES.get(name, 120), derandomize=True, database=None)
    @given(st.integers(0, 7), st.integers(0, 7), DAMAGE)
    def read(example: int, way: int, damage: Damage) -> None:
        refused.append(attempt(name, example, way, damage))

    read()
    assert any(refused) or not READERS[name].errors, "no damage was ever noticed"
