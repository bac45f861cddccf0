"""The error tree is drawn as it is, every leaf says whether to try again, and errors cross process borders whole."""

from __future__ import annotations

import inspect
import pickle
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs import errors
from include.cvmfs.errors import CvmfsError
from tests.fuzz.mutations import DAMAGE, Damage
from tests.fuzz.readers import READERS, attempt

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CvmfsError)]
RAISED = [kind for kind in TREE if kind.__init__ is not CvmfsError.__init__]


def made(kind: type[CvmfsError]) -> CvmfsError:
    time = datetime(2026, 11, 21, tzinfo=UTC)
    values = {"expires": time, "until": time}
    needed = [one for one in inspect.signature(kind.__init__).parameters.values() if one.kind is not one.KEYWORD_ONLY]
    return kind(*[values.get(one.name, f"some {one.name}") for one in needed[1:]])


def test_the_drawn_tree_names_every_error_below_its_parent() -> None:
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+)", line)
        if match and match[2] in vars(errors):
            depth = line.index(match[2]) // 4
            above[depth:] = [match[2]]
            drawn[match[2]] = above[depth - 1] if depth else None
    actual = {kind.__name__: kind.__mro__[1].__name__ if kind is not CvmfsError else None for kind in TREE}
    assert drawn == actual


@pytest.mark.parametrize("kind", RAISED)
def test_errors_name_what_they_concern_and_survive_pickling(kind: type[CvmfsError]) -> None:
    error = made(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert vars(error)


def test_only_lost_races_what_a_collection_took_and_what_is_frozen_may_be_tried_again() -> None:
    races = {"ManifestConflict", "BaseChanged"}
    prepared_again = {"PrepareAgain", "ObjectsLost"}
    waited_for = {"CollectionBusy", "CollectionRunning", "GenerationMoved", "RepositoryFrozen"}
    assert {kind.__name__ for kind in TREE if kind.retryable} == races | prepared_again | waited_for


# -- hostile input


EXAMPLES = {"root catalog": 40, "nested catalog": 40, "swapped catalog": 40, "reflog": 60, "content index": 40}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_the_examples_are_read(name: str) -> None:
    for example in READERS[name].examples():
        READERS[name].read(example)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_examples_are_read_or_refused(name: str) -> None:
    refused = []

    @settings(max_examples=EXAMPLES.get(name, 80), derandomize=True, database=None)
    @given(st.integers(0, 7), st.integers(0, 7), DAMAGE)
    def read(example: int, way: int, damage: Damage) -> None:
        refused.append(attempt(name, example, way, damage))

    read()
    assert any(refused) or not READERS[name].errors, "no damage was ever noticed"
