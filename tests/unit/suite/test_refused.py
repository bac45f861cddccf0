"""The suite's own way to expect an error."""

from __future__ import annotations

import pytest

from include.cvmfs.errors import DestinationError, NotReserved
from tests.fakes.refused import refused


def test_the_class_and_the_fields_that_are_named_have_to_be_those_of_the_error() -> None:
    with refused(DestinationError, path="/a") as caught:
        raise DestinationError("/a", "a file is in the way")
    assert caught.value.path == "/a"


@pytest.mark.parametrize("error", [NotReserved("/a"), DestinationError("/b", "a file is in the way")])
def test_a_subclass_and_another_field_are_not_what_was_expected(error: DestinationError) -> None:
    with pytest.raises(AssertionError), refused(DestinationError, path="/a"):
        raise error


def test_no_error_is_not_what_was_expected() -> None:
    with pytest.raises(pytest.fail.Exception), refused(DestinationError, path="/a"):
        pass
