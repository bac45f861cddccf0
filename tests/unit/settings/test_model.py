"""What a repository may say of approvals, and how a mistake in it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.settings.errors import InvalidSettings
from include.settings.model import SiteSettings

BEFORE = "gateway: gw\n"


def test_without_a_word_nobody_is_asked_and_a_word_of_it_suffices(parsed: Callable[..., SiteSettings]) -> None:
    assert {one.approval for one in parsed().repositories.values()} == {None}
    site = parsed((BEFORE, f"{BEFORE}    approval: {{}}\n"))
    (asked,) = {one.approval for one in site.repositories.values() if one.approval}
    assert (asked.deadline_minutes, asked.approvers) == (240, ())
    site = parsed((BEFORE, f"{BEFORE}    approval: {{deadline_minutes: 720, approvers: [anna, Bob B.]}}\n"))
    (asked,) = {one.approval for one in site.repositories.values() if one.approval}
    assert (asked.deadline_minutes, asked.approvers) == (720, ("anna", "Bob B."))


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        ("approval: {deadline_minutes: 0}", "deadline_minutes", "1"),
        ("approval: {deadline_minutes: 721}", "deadline_minutes", "720"),
        ("approval: {deadline_minutes: soon}", "deadline_minutes", "integer"),
        ("approval: {deadline_minuts: 60}", "deadline_minuts", "Did you mean `deadline_minutes`?"),
        ("approval: {approvers: anna}", "approvers", "tuple"),
        ("approval: {approvers: ['']}", "approvers", "pattern"),
        ("approval: true", "approval", "Write a block of keys below it."),
    ],
)
def test_a_mistake_is_named_with_its_key(parsed: Callable[..., SiteSettings], block: str, key: str, says: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parsed((BEFORE, f"{BEFORE}    {block}\n"))
    assert caught.value.problems
    for problem in caught.value.problems:
        assert key in problem.key
        assert says in str(problem)
