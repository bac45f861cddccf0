"""Operators that were renamed are still found by their former names, with a warning."""

from __future__ import annotations

import pytest

import operators.night


def test_a_former_name_gives_the_class_of_today_and_warns() -> None:
    with pytest.deprecated_call():
        found = operators.night.NightPlanOperator
    assert found is operators.night.PlanNightOperator


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = operators.night.NoSuchOperator
