"""Questions and their answers on every ledger: which answer counts, and what may not be answered any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.nightlies.errors import QuestionSettled
from include.nightlies.records import questions
from include.nightlies.rules.approval import Answer, Bound, QuestionKind, WantedApproval
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 2, 3, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(hours=4)
BODY = "```\n" + "\U0001f319 a line of a list\n" * 5000 + "```"


def wanted(*names, subject="Publish?"):
    bound = tuple(Bound(name, f"/n/{name}", name * 64) for name in names)
    return WantedApproval(QuestionKind.PUBLICATION, "n.example.org", subject, (BODY,), bound, 240, LATER)


def ask(ledger, *names, run="night/1", **more):
    return questions.ask(ledger, run, wanted(*names), now=NOW, deadline=LATER, **more)


def test_a_question_is_read_back_as_it_was_asked_and_answered(ledger):
    asked = ask(ledger, "a", "b")
    assert (asked.number, asked.turn, asked.answer, asked.deadline) == (1, 1, Answer.OPEN, LATER)
    assert asked.body == wanted("a", "b").body
    assert asked == questions.question(ledger, asked.id)
    assert [one.destination for one in questions.bound_of(ledger, asked.id)] == ["/n/a", "/n/b"]
    done = questions.settle(ledger, asked.id, Answer.REJECTED, now=LATER, by="Anna (anna)", comment="not on a Friday")
    assert done.outcome == "rejected by Anna (anna) at 2026-11-02 07:00 UTC: not on a Friday"
    assert questions.settle(ledger, asked.id, Answer.REJECTED, now=NOW) == done
    with refused(QuestionSettled, number=asked.number):
        questions.settle(ledger, asked.id, Answer.APPROVED, now=LATER, by="bob")


def test_the_last_question_about_a_digest_counts_in_these_runs_alone(ledger):
    first = ask(ledger, "a", "b")
    questions.settle(ledger, first.id, Answer.APPROVED, now=NOW, by="anna")
    second = ask(ledger, "b", "c")
    ask(ledger, "a", run="night/2")
    found = questions.newest(ledger, ["night/1"], ["a" * 64, "b" * 64, "c" * 64, "d" * 64])
    assert {digest[0]: (one.number, one.answer) for digest, one in found.items()} == {
        "a": (1, Answer.APPROVED), "b": (2, Answer.OPEN), "c": (2, Answer.OPEN),
    }  # fmt: skip
    assert [one.id for one in questions.of_run(ledger, "night/1")] == [first.id, second.id]
    assert questions.newest(ledger, [], ["a" * 64]) == questions.newest(ledger, ["night/1"], []) == {}


def test_asking_anew_replaces_what_nobody_answered_and_that_cannot_be_answered_any_more(ledger):
    first, second = ask(ledger, "a"), ask(ledger, "a")
    assert questions.question(ledger, first.id).answer is Answer.REPLACED
    for late in (Answer.APPROVED, Answer.EXPIRED):
        with refused(QuestionSettled, number=first.number):
            questions.settle(ledger, first.id, late, now=LATER)
    with pytest.raises(QuestionSettled):
        questions.ask_again(ledger, first.id, now=NOW, deadline=LATER)
    assert questions.question(ledger, second.id).turn == 2


def test_a_question_that_is_opened_again_is_another_turn_of_its_run(ledger):
    asked = ask(ledger, "a")
    assert questions.ask_again(ledger, asked.id, now=NOW, deadline=LATER).turn == 1
    questions.settle(ledger, asked.id, Answer.EXPIRED, now=LATER)
    again = questions.ask_again(ledger, asked.id, now=LATER, deadline=LATER + timedelta(hours=1))
    assert (again.turn, again.answer, again.answered_at, again.comment) == (2, Answer.OPEN, None, "")


def test_an_answer_that_is_taken_over_says_where_it_was_given(ledger):
    first = ask(ledger, "a")
    first = questions.settle(ledger, first.id, Answer.APPROVED, now=NOW, by="anna", comment="fine")
    taken = ask(ledger, "a", run="night/2", answered=first)
    assert (taken.answer, taken.answered_by, taken.comment) == (Answer.APPROVED, "anna", "asked in night/1; fine")


def test_many_thousand_digests_are_looked_up(ledger):
    names = [f"{number:064x}" for number in range(1500)]
    bound = tuple(Bound(name[-4:], f"/n/{name[-4:]}", name) for name in names)
    many = WantedApproval(QuestionKind.PUBLICATION, "n.example.org", "Publish?", (), bound, 240, LATER)
    asked = questions.ask(ledger, "night/1", many, now=NOW, deadline=LATER)
    assert {one.id for one in questions.newest(ledger, ["night/1"], names).values()} == {asked.id}
    assert len(questions.bound_of(ledger, asked.id)) == len(names)
    assert questions.prepared(ledger, names) == {}
