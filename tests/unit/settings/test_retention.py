"""What a slot may say of its retention, and how a mistake in it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.settings.errors import InvalidSettings
from include.settings.model import SiteSettings
from include.settings.retention import WeekdayRule

PROJECTS = "projects: [Gaudi, LHCb]\n"
BLOCK = "retention: {keep_last: 14, keep_weekdays: {days: [Sun], weeks: 12}}"


def test_rules_are_read_and_the_others_have_defaults(parsed: Callable[..., SiteSettings]) -> None:
    found = parsed((PROJECTS, f"{PROJECTS}    {BLOCK}\n")).slot("main").retention
    assert found is not None
    assert (found.keep_last, found.keep_days, found.keep_weekdays) == (14, None, WeekdayRule(days=("Sun",), weeks=12))
    assert (found.keep_tagged, found.minimum, found.rebuild_days, found.approve_above) == (True, 3, 7, 10)


def test_without_the_block_no_build_goes_by_itself(parsed: Callable[..., SiteSettings]) -> None:
    assert parsed((PROJECTS, PROJECTS)).slot("main").retention is None


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        ("retention: {keep: 3}", "slots.main.retention.keep", "Did you mean `keep_last`?"),
        ("retention: {minimum: 3}", "slots.main.retention", "Set `keep_last:`"),
        ("retention: {keep_last: -1}", "slots.main.retention.keep_last", "greater than or equal to 0"),
        ("retention: {keep_last: 3, minimum: 0}", "slots.main.retention.minimum", "greater than or equal to 1"),
        (
            "retention: {keep_weekdays: {days: [Sunday], weeks: 2}}",
            "slots.main.retention.keep_weekdays.days[0]",
            "'Sun'",
        ),
        (
            "retention: {keep_weekdays: {day: [Sun], weeks: 2}}",
            "slots.main.retention.keep_weekdays.day",
            "Did you mean `days`?",
        ),
        (
            'retention: {keep_last: 3}\n    destination: "/n/{project}/{platform}/{build_id}"',
            "slots.main",
            "do without retention",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key_and_the_cure(
    parsed: Callable[..., SiteSettings], block: str, key: str, says: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed((PROJECTS, f"{PROJECTS}    {block}\n"))
    found = {problem.key: str(problem) for problem in caught.value.problems}
    assert says in found[key], found


def test_behind_a_publisher_node_it_is_refused(parsed: Callable[..., SiteSettings]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed((PROJECTS, f"{PROJECTS}    {BLOCK}\n"), ("gateway: gw\n", "gateway: gw\n    publisher: cvmfs-server\n"))
    found = {problem.key: str(problem) for problem in caught.value.problems}
    assert "removes no builds together" in found["slots.main.retention"]
