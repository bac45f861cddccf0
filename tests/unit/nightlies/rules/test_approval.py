"""What an approval binds, how long an answer is waited for, and how hostile names are shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from include.cvmfs.coordination.generation import CHANGESET_LIFE, ORPHAN_GRACE
from include.nightlies.rules.approval import (
    MARGIN,
    SHOWN,
    Bound,
    QuestionKind,
    WantedApproval,
    deadline,
    expiry,
    link_digest,
    question_digest,
    removal_digest,
    tree_digest,
)
from include.settings.model import Approval

NOW = datetime(2026, 11, 2, 3, 0, tzinfo=UTC)
TREE = {"repository": "n.example.org", "destination": "/n/A", "source_sha256": "aa", "root": "bb"}


def tree(**changes: str) -> str:
    given = TREE | changes
    return tree_digest(given.pop("repository"), given.pop("destination"), **given)


def wanted(*lines: str) -> WantedApproval:
    bound, expires = (Bound("A", "/n/A", tree()),), NOW + timedelta(hours=4)
    return WantedApproval(QuestionKind.PUBLICATION, "n.example.org", "?", lines, bound, 240, expires)


def test_the_same_content_at_the_same_place_is_the_same_and_any_change_is_another() -> None:
    assert tree() == tree()
    others = [tree(**{name: "other"}) for name in TREE] + [link_digest("n.example.org", "/n/A", target="aa", root="bb")]
    assert len({tree(), *others}) == len(TREE) + 2
    # a border between two parts cannot be moved
    assert tree(source_sha256="a", root="abb") != tree()


@given(st.permutations([Bound(name, f"/n/{name}", tree(destination=name)) for name in "ABCD"]))
def test_a_question_is_the_same_in_whatever_order_it_lists(bound: list[Bound]) -> None:
    assert question_digest(bound) == question_digest(sorted(bound, key=lambda one: one.name))
    assert question_digest(bound) != question_digest(bound[1:])


def test_an_undo_is_bound_by_the_present_trees_and_their_replacements() -> None:
    lines = [("/n/A", "aa"), ("/n/B", "bb", "/n/old/B", "cc")]
    digest = removal_digest(QuestionKind.UNDO, "n.example.org", "b1", lines)
    assert digest == removal_digest(QuestionKind.UNDO, "n.example.org", "b1", reversed(lines))
    for other in ([lines[0]], [("/n/A", "other"), lines[1]], [("/n/A", "aa", "/n/B", "bb"), *lines[1:]]):
        assert removal_digest(QuestionKind.UNDO, "n.example.org", "b1", other) != digest


def test_an_answer_is_waited_for_until_the_deadline_or_until_it_is_of_no_use() -> None:
    assert deadline(NOW, 240, expiry(NOW)) == NOW + timedelta(hours=4)
    assert deadline(NOW, 240, expiry(NOW - timedelta(hours=22))) == NOW + timedelta(hours=1)


def test_the_longest_wait_ends_while_a_changeset_lives_and_a_collector_spares_what_it_sent() -> None:
    (longest,) = [one.le for one in Approval.model_fields["deadline_minutes"].metadata if hasattr(one, "le")]
    with pytest.raises(ValidationError):
        Approval(deadline_minutes=longest + 1)
    prepared = timedelta(hours=10)  # as long as preparing may take at most
    assert prepared + timedelta(minutes=int(longest)) + MARGIN <= CHANGESET_LIFE < ORPHAN_GRACE


def test_names_that_would_be_markdown_or_turn_the_text_around_are_shown_as_they_are_in_code_spans() -> None:
    hostile = Bound("A` | [x](http://x)\\|", "/n/\u202egpj.exe\n# Approve this", tree(), "<b>bold</b>")
    body = replace(wanted("because: `# why`\n```"), bound=(hostile,)).body
    assert "* `because: '# why'?'''`" in body
    assert (
        f"| `A' \u00a6 [x](http://x)\\\u00a6` | `/n/?gpj.exe?# Approve this` | `<b>bold</b>` | `{tree()[:16]}` |"
        in body
    )
    assert body.count("|") == 5 * 3


def test_a_publication_is_shown_as_a_table_and_what_undoing_does_as_a_list() -> None:
    body = wanted("run 1").body
    assert "* `run 1`\n\n| Artifact | Destination | Content | SHA-256 |\n|---|---|---|---|\n| `A` | `/n/A` |  |" in body
    undo = replace(wanted("/n/A: goes", "/n/B: goes"), kind=QuestionKind.UNDO).body
    assert undo.startswith("* `/n/A: goes`\n* `/n/B: goes`\n\nYour answer")
    many = tuple(Bound(f"A{number}", "/n", tree(root=str(number))) for number in range(SHOWN + 7))
    body = replace(wanted("run"), bound=many).body
    assert "… and 7 more" in body
    assert question_digest(many) in body, "all of them are bound"
